"""What scripts/compare and scripts/report share: reading runs, statistics, measuring, drawing. Standard library only."""
