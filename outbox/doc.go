// Package outbox is a transactional outbox: an application writes a message in
// the transaction that writes its business data, and a relay delivers what was
// committed to a broker.
//
// # What is promised
//
//   - No loss. Every committed message is delivered at least once, or is in
//     the table of dead letters with the reason. No cursor, time window or
//     clean-up hides a pending message.
//   - Order. For two messages of one key: if the transaction of A had committed
//     before B was inserted, A is delivered before B is delivered for the first time,
//     across retries, crashes and a change of the leading relay. [SkipLocked], the usual
//     design, does not keep this order and is never the default.
//   - Bounded duplicates. After a crash at most [Config.MaxInFlight] messages
//     are sent again, with the same id, in the same order.
//   - Exactly-once effects at a consumer that uses package outbox/inbox.
//
// # Producing
//
// [Enqueue] needs only the transaction and its SQL dialect; it imports no
// driver and no broker:
//
//	tx, err := db.BeginTx(ctx, nil)
//	// ... INSERT INTO orders ...
//	err = outbox.Enqueue(ctx, outbox.Postgres(tx), outbox.Message{
//		Topic: "orders", Key: "order-42", Payload: body,
//	})
//	err = tx.Commit()
//
// # Relaying
//
// A [Relay] moves messages from a [Store] (packages outbox/postgres,
// outbox/mysql, outbox/sqlite) to a [Sink] (packages below outbox/sink). Any
// number of relays may run; one leads each shard, the others stand by.
package outbox
