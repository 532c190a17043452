// Package fence keeps an old holder of a lock away from a folder: a file remembers the
// highest fencing token that was seen there, and a lower one is refused.
//
// # Promise
//
//   - [Enter] returns a [Held] only if no higher token was recorded, and only when its own is
//     recorded durably. It holds the file's lock until it is closed, or until the last process
//     that has inherited its descriptor is gone.
//   - So of those who enter by one file one works at a time, and nobody works with a lower
//     token after one with a higher has begun.
//   - The file is replaced by rename: a reader sees the old record or the new one, at any time
//     and after a crash. What isn't a record is never overwritten.
//
// # Limits
//
//   - Whoever doesn't enter isn't kept out, and whoever has entered isn't looked at again.
//   - The file is the memory. Who deletes it, or restores an old one, makes it forget.
//   - The lock is flock(2) on FILE.lock. It holds between hosts only where the file system
//     carries it (NFS does on Linux, unless mounted with local_lock). A server that takes the
//     lock away from a client which it doesn't hear (NFSv4 does when the client's lease ends)
//     lets the next one in while the old one may still work. The tokens are refused all the same.
//   - A file system that can't fsync a folder (EINVAL) decides itself when the rename is durable.
//
// # Use
//
//	held, err := fence.Enter(ctx, "/srv/reports/.fence", fence.Record{Token: 25, Host: host})
//	... work, or: err = held.Inherit(), then execute ...
//	held.Close()
package fence
