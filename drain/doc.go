// Package drain knows whether this host is drained: what runs is to end (or may finish), and
// nothing new is begun. It is for the reboot or the repair of one host.
//
// # Promise
//
//   - A drain is a file on the host itself. It works while Consul is away, and costs Consul
//     nothing.
//   - The file is replaced as a whole: a reader sees the old one or the new one.
//   - A file that is there and can't be understood is a drain: somebody has asked for something,
//     and to begin a job may be wrong, to leave it to another host isn't.
//
// # Limits
//
//   - The usual folders are emptied by a reboot, and with them every drain; that of a user who
//     isn't root also by the user's last logout, unless the user lingers (loginctl).
//   - The end of a drain is an instant of the wall clock.
//   - A running onlyone notices a change within a second.
//
// # Use
//
//	dirs := drain.Dirs(extra)
//	state, err := drain.Read(dirs, time.Now())      // before the lock is asked for
//	drain.Watch(ctx, dirs, func(s drain.State) {})  // as long as something waits or runs
package drain
