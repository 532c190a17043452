// Package telling tells others about a run: a monitoring service by HTTP (ping.go), a script
// by a JSON file (result.go), Prometheus by a file (textfile.go) or by HTTP (metrics.go,
// server.go).
//
// # Promise
//
//   - Telling never delays the command and never changes the exit code. [Pinger.Start] returns
//     at once; [Pinger.End] takes at most 2 s, whatever the other side does.
//   - A wrong URL, folder, file or address is found by the constructors, before anything runs.
//   - Files change whole: whoever reads one sees the old content or the new.
//   - No message has more of a ping's URL than scheme://host.
//   - A server that is asked too much refuses: it can't take the descriptors or the memory that
//     the lease needs.
//
// # Limits
//
//   - Nothing here is safe or unsafe: what is told may be late, lost or told twice.
//   - Files are written to a local disk, and a disk that hangs, hangs the writer. Write them
//     when the lock has been released.
//   - The process that serves /metrics is the one that contends. When it has ended nobody
//     answers; short jobs use a file.
//
// # Use
//
// All are independent of each other, and nil is "off": its methods do nothing.
//
//	pinger, err := telling.NewPinger(url, telling.NewID(), warn)
//	result, err := telling.NewResultFile("/var/lib/backup/result.json")
//	file, err := telling.NewTextfile("/var/lib/node_exporter/backup.prom", "backup")
//	metrics := telling.NewMetrics("backup", "1.2.3")
//	server, err := telling.Listen("127.0.0.1:9099", metrics)
//	...
//	pinger.Start(run)    // the command has been started
//	pinger.End(ctx, run) // it has ended, and the lock is released
//	result.Write(run)
//	file.Write(run)
//	server.Close()
package telling
