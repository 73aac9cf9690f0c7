// scripts/slay_attention.py as it stands when this is compiled (the Makefile knows of the dependency).
#include "modeling.h"

__asm__(".section .rodata\n"
        ".global modeling_begin, modeling_end\n"
        "modeling_begin: .incbin \"scripts/slay_attention.py\"\n"
        "modeling_end: .byte 0\n"
        ".previous\n");
