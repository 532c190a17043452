# A system job: the same on each node, also on those that come later. One of them works, all
# others wait in the queue, in the order of their arrival.
#
# service.nomad.hcl says what the restarts, the signal and the timeout are for. Nomad before 1.5
# also wants to know the datacenters: datacenters = ["dc1"].
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
      driver = "raw_exec" # it must be enabled on the clients; or "exec", see service.nomad.hcl

      config {
        command = "/usr/local/bin/onlyone"
        args = [
          "run", "-v",
          # In status and history the name that the node has in Nomad.
          "--host", "${node.unique.name}",
          "--stop-timeout", "20s",
          # A failure is mended here, under the same lock, three times. Then the next node tries,
          # and Nomad puts this one at the end of the queue.
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
