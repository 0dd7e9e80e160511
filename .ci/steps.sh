# Sourced by .ci/run and .ci/lint: runs steps by name, keeps going after a failure, and sums up at the end.

steps_done=()
steps_failed=0

# step NAME COMMAND...: runs the command in the checkout, prints its name and how long it took.
step() {
    local name=$1 started=$SECONDS verdict=ok
    shift
    printf '\n=== %s\n' "$name"
    "$@" || { verdict="FAILED (exit code $?)"; steps_failed=1; }
    steps_done+=("$(printf '%-12s %5d s  %s' "$name" $((SECONDS - started)) "$verdict")")
    printf '=== %s\n' "${steps_done[-1]}"
}

# Prints every step with its duration; fails when one of them did.
summary() {
    printf '\n=== summary, %d s in all\n' "$SECONDS"
    printf '%s\n' "${steps_done[@]}"
    return "$steps_failed"
}
