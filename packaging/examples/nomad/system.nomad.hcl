# A system job: the same on each node, also on those that come later. One of them works, all
# others wait in the queue, in the order of their arrival.
job "compactor" {
  type = "system"

  group "compactor" {
    restart {
      attempts = 10
      interval = "5m"
      delay    = "5s"
      mode     = "delay"
    }

    task "compactor" {
      driver = "raw_exec" # it must be enabled on the clients; "exec" works as well

      config {
        command = "/usr/local/bin/onlyone"
        args = [
          "run", "-v",
          # The node's name in status and history, not that of a container.
          "--host", "${node.unique.name}",
          "--stop-timeout", "20s",
          # A failure is mended here, under the same lock, three times; then the next node tries.
          "--restart", "on-failure", "--max-restarts", "3",
          "compactor",
          "--",
          "/usr/local/bin/compactor",
        ]
      }

      kill_signal  = "SIGTERM"
      kill_timeout = "28s"
    }
  }
}
