# The lock in a task of its own, beside an application that can't be a child of onlyone: it
# asks http://127.0.0.1:9099/leader before it does what only one may do.
#
# This promises less. onlyone stops what it has started, and that isn't the application: it
# may go on for as long as it doesn't ask. Let it send FENCE_TOKEN, or take service.nomad.hcl.
job "scheduler" {
  type = "service"

  group "scheduler" {
    count = 2

    network {
      mode = "host"
    }

    task "lock" {
      driver = "raw_exec"

      # Beside the application for as long as that lives, and started before it.
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command = "/usr/local/bin/onlyone"
        args = [
          "run", "-v",
          # 200 while the lock is held and the lease isn't over, else 503.
          "--metrics-listen", "127.0.0.1:9099",
          # If the lock is lost: wait for it again, so that the port stays.
          "--on-lost", "wait",
          # Something has to be run. It also writes the token where the application finds it.
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

      config {
        command = "/usr/local/bin/scheduler"
        args    = ["--leader-url", "http://127.0.0.1:9099/leader"]
      }
    }
  }
}
