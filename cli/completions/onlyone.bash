# bash completion for onlyone. Installed as
#   /usr/share/bash-completion/completions/onlyone
# or, in ~/.bashrc:
#   source <(onlyone completion bash)

_onlyone() {
	local words=() n=0 i word line value joined=
	COMPREPLY=()
	for ((i = 1; i <= COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		if [[ $word == -- ]] && ((i < COMP_CWORD)); then
			_onlyone_guarded $((i + 1))
			return
		fi
		# bash has split --flag=VALUE and HOST:PORT (COMP_WORDBREAKS); for us each is one word.
		if ((n > 0)) && [[ $joined || $word == [=:]* ]]; then
			words[n - 1]+=$word
			joined=
			[[ $word == [=:] ]] && joined=yes
		else
			words[n++]=$word
		fi
	done
	value=${words[n - 1]}
	[[ $value == -*=* ]] && value=${value#*=}
	while IFS= read -r line; do
		case $line in
		:file | :dir)
			compopt -o filenames 2>/dev/null
			while IFS= read -r word; do
				COMPREPLY+=("$word")
			done < <(if [[ $line == :dir ]]; then compgen -d -- "$value"; else compgen -f -- "$value"; fi)
			;;
		*) COMPREPLY+=("${line%%$'\t'*}") ;;
		esac
	done < <("${1:-onlyone}" __complete -- "${words[@]}" 2>/dev/null)
}

# The guarded command begins at word $1: it completes itself.
_onlyone_guarded() {
	local current=${COMP_WORDS[COMP_CWORD]} word
	if declare -F _command_offset >/dev/null; then
		_command_offset "$1"
		return
	fi
	compopt -o filenames 2>/dev/null
	while IFS= read -r word; do
		COMPREPLY+=("$word")
	done < <(if (($1 == COMP_CWORD)); then compgen -c -- "$current"; else compgen -f -- "$current"; fi)
}

complete -F _onlyone onlyone
