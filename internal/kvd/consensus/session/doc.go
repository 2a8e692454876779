// Package session is the client side of the replicated store. It numbers the writes of a
// session, sends its weak writes along with later operations until they are committed, counts
// the votes of witnesses, keeps the token that makes weak reads monotonic, and repeats requests
// until it has an answer. It does no I/O: like package consensus, it turns events into messages
// and outcomes. The Go client, the gateway for Redis clients and the simulator use it.
//
// A session guarantees, where the switches of the cluster allow the level:
//
//   - a strong operation is linearizable, and when it is answered, the weak writes that were
//     answered before it was issued are committed;
//   - a weak read sees all that the session has written or read before, and no uncommitted write of
//     another session;
//   - every write happens exactly once, or fails with an error that says that its outcome is unknown;
//   - concurrent operations of the session take effect in the order in which they were issued, as
//     far as they touch the same keys.
package session
