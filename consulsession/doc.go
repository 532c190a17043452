// Package consulsession contends for a lock in Consul: client, session, queue, proof of
// ownership, release, and the records that people read.
//
// # Promise
//
//   - [Contender.Acquire] returns a [Term] only for a successful acquiring transaction of this
//     very session, sent after a consistent read had shown the key free.
//   - [Term.Check] is a linearizable read. nil proves that the lock was held at an instant
//     after the call began; a *[LostError] proves that it isn't any more; everything else
//     proves nothing. A renewal's 200 and what a watch shows prove nothing either.
//   - [Term.Token] grows from holder to holder: it is the Raft index of the acquire.
//   - Contenders are served in order of arrival, and a release wakes one of them: at most 8
//     requests a contender, renewals apart, with 10 waiting or with 100.
//   - A session serves one term. An acquire whose answer never came is asked for again with
//     the same session, or the session is destroyed; it is never taken for held.
//   - Every request but a watch takes at most Config.Poll; a watch takes at most 20 s. At most
//     two connections go to an address.
//   - The lock key is never deleted and has the flags of "consul lock", so that the two exclude
//     each other.
//
// # Limits
//
//   - A session's TTL is not a lease: Consul can end a session that was renewed a moment ago.
//     Only the lock-delay (Config.Lease) holds others off afterwards, and neither the deletion
//     of the key nor a restored snapshot arms it. For these there is the token.
//   - Refused transactions have no code: the reason is read from Consul's text, which has been
//     the same from 1.8 to 1.22.
//   - Sessions and keys of one datacenter; nothing here reaches a second one.
//
// # Use
//
//	c, err := consulsession.NewContender(consulsession.Config{...}) // sends nothing
//	t, err := c.Acquire(ctx, func(info []byte) error { ... })       // info: for ReleaseTerm
//	... t.Check, t.Renew, t.Watch ...
//	err = t.Release(ctx, consulsession.Ended{...})                  // the work is gone
//	c.Close()
//
// A Contender serves one goroutine, one term after the other. [ReleaseTerm] releases in the
// place of a process that was killed.
package consulsession
