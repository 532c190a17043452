# fish completion for onlyone. Installed as
#   /usr/share/fish/vendor_completions.d/onlyone.fish
# or, in ~/.config/fish/config.fish:
#   onlyone completion fish | source

function __onlyone_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    if set -l dashes (contains -i -- -- $words)
        # The guarded command completes itself.
        set -l line
        if test $dashes -lt (count $words)
            set line (string escape -- $words[(math $dashes + 1)..-1])
        end
        complete -C (string join ' ' -- $line "$current")
        return
    end
    # A candidate for --flag=VALUE is the whole word.
    set -l prefix (string match -r '^-[^=]+=' -- $current)
    set -l value (string replace -r '^-[^=]+=' '' -- $current)
    for line in ($words[1] __complete -- $words[2..-1] "$current" 2>/dev/null)
        switch $line
            case :file
                __fish_complete_path $value
            case :dir
                __fish_complete_directories $value
            case '*'
                printf '%s\n' "$prefix$line"
        end
    end
end

complete -c onlyone -f -a '(__onlyone_complete)'
