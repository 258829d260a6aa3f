_clustermutex_completion() {
    local kind reply
    COMPREPLY=()
    while IFS=, read -r kind reply; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$reply") ;;
        esac
    done < <(env COMP_WORDS="${COMP_LINE:0:COMP_POINT}" COMP_CWORD="$2" \
        _CLUSTERMUTEX_COMPLETE=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F _clustermutex_completion clustermutex
