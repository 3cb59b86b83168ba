# Print the first exported variable whose name is nearly that of a setting, such as MAXTASKS for MAX_TASKS: without the
# underscores, they differ in one letter at most, or in two neighbours. Of settings of one short word, such as REGION, only
# two neighbours count, because variables such as TAG belong to others. The input is `compgen -e`; `known` has the settings.

function near(a, b, is_short, i) {
    for (i = 1; i <= length(a) && substr(a, i, 1) == substr(b, i, 1); i++);
    a = substr(a, i); b = substr(b, i)
    if (length(a) > 1 && substr(a, 2, 1) substr(a, 1, 1) substr(a, 3) == b) return 1
    return !is_short && (substr(a, 2) == substr(b, 2) || substr(a, 2) == b || a == substr(b, 2))
}

function letters(name) { gsub("_", "", name); return toupper(name) }

BEGIN {
    count = split(known, settings)
    for (i in settings) is_setting[settings[i]] = 1
}

!($1 in is_setting) {
    for (i = 1; i <= count; i++)
        if (near(letters($1), letters(settings[i]), settings[i] !~ /_|......../)) {
            print $1 " is no setting, and nothing reads it: did you mean " settings[i] "? If not: unset " $1
            exit
        }
}
