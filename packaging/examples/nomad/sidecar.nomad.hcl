# The lock in a task of its own, beside an application that can't be a child of onlyone: it
# asks http://127.0.0.1:PORT/leader before it does what only one may do. 200 is yes. All else is
# no, also no answer: onlyone may be on its way back.
#
# This promises less. onlyone stops what it has started, and that isn't the application: it
# may go on for as long as it doesn't ask. Let it send FENCE_TOKEN, or take service.nomad.hcl.
#
# raw_exec must be enabled on the clients. Nomad before 1.5 also wants to know the datacenters:
# datacenters = ["dc1"].
job "scheduler" {
  type = "service"

  group "scheduler" {
    count = 2

    # Not both on one node: the standby is there for the node's death.
    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    # A port that is this instance's alone. With a fixed one that isn't reserved an application
    # could ask the onlyone of another instance, and be told yes.
    network {
      port "leader" {}
    }

    task "lock" {
      driver = "raw_exec"

      # Beside the application for as long as that lives. Started before it, which doesn't mean
      # that the lock is held by then.
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command = "/usr/local/bin/onlyone"
        args = [
          "run", "-v",
          # 200 while the lock is held and the lease isn't over, else 503.
          "--metrics-listen", "127.0.0.1:${NOMAD_PORT_leader}",
          # If the lock is lost: wait for it again, so that somebody answers on the port.
          "--on-lost", "wait",
          # Something has to be run. It also writes the token where the application finds it, and
          # where the one of a term that is over stays.
          "scheduler",
          "--",
          "/bin/sh", "-c", "echo \"$FENCE_TOKEN\" >\"$NOMAD_ALLOC_DIR/fence-token\"; exec sleep infinity",
        ]
      }

      kill_signal  = "SIGTERM"
      kill_timeout = "10s"
    }

    task "scheduler" {
      driver = "raw_exec"

      # Nomad stops the leader of a group first, and the others when it has ended: the lock is
      # released when the application is gone. Not so in a restart in place (`nomad job restart`,
      # `nomad alloc restart`): that stops all tasks at once.
      leader = true

      config {
        command = "/usr/local/bin/scheduler"
        args    = ["--leader-url", "http://127.0.0.1:${NOMAD_PORT_leader}/leader"]
      }
    }
  }
}
