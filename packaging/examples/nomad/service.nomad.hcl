# A service of which one instance works and the other stands by, on any two nodes.
#
# Nomad alone can run two at once: a client that has lost its servers goes on with what it
# runs, and the servers start it anew elsewhere. The lock keeps these two apart.
job "billing" {
  type = "service"

  group "billing" {
    count = 2

    # Not both on one node: the standby is there for the node's death.
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    # onlyone ends when the lock is lost (79) or the command fails. Start again, on this node,
    # without a limit: to be in the queue again costs nothing.
    restart {
      attempts = 10
      interval = "5m"
      delay    = "5s"
      mode     = "delay"
    }

    task "billing" {
      # raw_exec and exec: onlyone is an ordinary process there. Nomad's own executor kills
      # what is left of a task when onlyone has ended; there is nothing left then.
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
