# A service of which one instance works and the other stands by, on any two nodes.
#
# Nomad alone can run two at once: a client that has lost its servers goes on with what it
# runs, and the servers start it anew elsewhere. The lock keeps these two apart.
#
# Nomad before 1.5 also wants to know the datacenters: datacenters = ["dc1"].
job "billing" {
  type = "service"

  group "billing" {
    count = 2

    # Not both on one node: the standby is there for the node's death.
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    # onlyone ends when the lock is lost (79), or with the command. Start again, on this node,
    # and never give up: 10 times in 5 minutes, then not until these are over. To be in the
    # queue again costs nothing.
    restart {
      attempts = 10
      interval = "5m"
      delay    = "5s"
      mode     = "delay"
    }

    # Nomad places nothing else that wants this port on the node. If something that Nomad doesn't
    # know of has it, onlyone ends before it contends (78).
    network {
      port "metrics" {
        static = 9099
      }
    }

    task "billing" {
      # exec: a PID namespace, in which onlyone is PID 1, a chroot, and the user nobody unless
      # user = "..." names another. raw_exec: an ordinary process with the client's user.
      #
      # A stop leaves nothing for Nomad to kill. If onlyone itself is killed (kill -9, out of
      # memory), all in the namespace dies with it, also the guard. Then nobody releases, and the
      # standby starts when Consul gives the lock free: within 41 s. With raw_exec the guard can
      # outlive onlyone; then it stops the command and hands over at once.
      #
      # `onlyone drain` on the host isn't seen in the chroot; `nomad node drain` stops in order.
      driver = "exec"

      config {
        command = "/usr/local/bin/onlyone"
        args = [
          "run", "-v", # standby, running, stopping: into the task's log
          "--stop-timeout", "20s",
          "--metrics-listen", "127.0.0.1:9099", # /healthz and /leader
          "billing",
          "--",
          "/usr/local/bin/billing",
        ]
      }

      env {
        # The agent on this node. With ACLs: CONSUL_HTTP_TOKEN_FILE.
        CONSUL_HTTP_ADDR = "127.0.0.1:8500"
      }

      # Nomad sends SIGINT otherwise. onlyone takes both for the same.
      kill_signal = "SIGTERM"

      # More than --stop-timeout: SIGKILL must not come while the command still stops. The
      # most that a client allows is its max_kill_timeout, 30s unless it is set.
      kill_timeout = "28s"
    }
  }
}
