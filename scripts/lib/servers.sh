# Dev servers of Consul on free loopback ports, for scripts that source this file. They
# keep all in memory, so the caller ends them with SIGKILL.
# shellcheck shell=bash

exec {never}<> <(:) # nothing ever comes from here
pause() { read -rt "$1" -u "$never" || true; }

# alive PID: it runs. Bash doesn't always reap at once, so a zombie counts as dead.
alive() {
	local state
	{ read -r _ _ state _ <"/proc/$1/stat"; } 2>/dev/null && [ "$state" != Z ]
}

# gone PID...: waits for their end, at most 5 s.
gone() {
	local until=$((SECONDS + 5)) pid
	for pid; do
		while alive "$pid"; do
			[ $SECONDS -lt $until ] || return 1
			pause 0.01
		done
	done
}

# free_port prints a port below the ephemeral ones that nobody listens on.
free_port() {
	local port
	for _ in {1..100}; do
		port=$((20000 + RANDOM % 12000))
		if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			printf '%s\n' $port
			return 0
		fi
	done
	return 1
}

# start_server CONSUL LOG [OPTION...] starts a server and waits until it answers; the
# options are the agent's. It sets $server, the pid, and $address. In a process group of its
# own, so that ^C doesn't end it before those that use it.
start_server() {
	local consul=$1 log=$2 http opts
	shift 2
	for _ in {1..3}; do # somebody may take a port between our look and its start
		http=$(free_port)
		opts=(-dev -bind 127.0.0.1 -client 127.0.0.1 -log-level warn
			-http-port "$http" -server-port "$(free_port)" -serf-lan-port "$(free_port)"
			-serf-wan-port -1 -dns-port -1 -grpc-port -1)
		case $("$consul" agent -h 2>&1 || true) in
		*-grpc-tls-port*) opts+=(-grpc-tls-port -1) ;; # 1.14 and later
		esac
		set -m
		CHECKPOINT_DISABLE=1 "$consul" agent "${opts[@]}" "$@" >"$log" 2>&1 </dev/null &
		server=$! address=127.0.0.1:$http
		disown
		set +m
		for _ in {1..150}; do
			alive "$server" || break
			if CONSUL_HTTP_ADDR=$address "$consul" kv put ready yes >/dev/null 2>&1; then
				return 0
			fi
			pause 0.1
		done
		kill -KILL "$server" 2>/dev/null || true
		server=''
	done
	return 1
}
