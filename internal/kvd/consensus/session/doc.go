// Package session is the client's side of the replicated store: it numbers a
// session's writes, carries its weak writes along until they are committed,
// counts witness votes, keeps the token that makes weak reads monotonic, and
// asks again until it has an answer. It decides nothing about sockets: events
// go in, messages and outcomes come out, as in package consensus. The Go client,
// the gateway for Redis clients and the simulator all run this code.
//
// A session promises, with levels as the cluster's switches say:
//
//   - a strong operation is linearizable, and by the time it has an answer the
//     weak writes that were answered before it was issued are committed;
//   - a weak read sees all that the session has written or read before, and
//     never an uncommitted write of another session;
//   - every write happens exactly once, or fails with an error that says that
//     its outcome is unknown;
//   - operations that are under way at once take effect in the order in which
//     they were issued, as far as they touch the same keys.
package session
