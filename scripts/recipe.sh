# For scripts, to be read by `.` and used from the repository's root: what is trained, and where it may go.
quick_recipe() { grep -v '^#' scripts/recipe.txt | tr '\n' ' ' | sed 's/ $//'; }
require_attention() { # name
    [ -x ./train_gpt2 ] || refuse "./train_gpt2 is missing; run make"
    ./train_gpt2 --attention list | grep -q "^$1 " ||
        refuse "expected one of $(./train_gpt2 --attention list | awk '{printf "%s%s", sep, $1; sep = ", "}') as the attention, found '$1'"
}
# What is there, a run or data, is somebody's work and stays: prints NAME, or NAME_2, NAME_3 ... that nothing has yet.
free_name() { # name
    free=$1 number=1
    while [ -e "$free" ] || [ -L "$free" ]; do
        number=$((number + 1))
        free=$1_$number
    done
    echo "$free"
}
