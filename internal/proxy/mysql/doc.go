// Package mysql is the MySQL and MariaDB side of the proxy: it runs the sessions of many
// clients over few connections to the server, pipelines reads of several clients, and groups
// writes that ask for it.
//
// It differs from the PostgreSQL side where the protocols differ. A client has one command in
// flight at a time. The server itself reports session state: the transaction in the status
// flags of each OK, settings and the database by session tracking, which weir switches on for
// all its connections. An ERR packet reports no state, so weir queries it where the error may
// have ended a transaction.
//
// # The walk of an INSERT
//
// The functions that a statement passes on its way to the server and back, with their files.
// Files that are only consulted on the way (texts.go, pins.go, diagnostics.go, settings.go,
// statements.go) are left out. A text is split into tokens and scanned once: while its command
// waits, texts.own keeps the result, for the same bytes in the same mode.
//
// Plain, outside a transaction and without a hint:
//
//	transport.go  client.OnData, client.feed        cut a command from what the socket has read
//	router.go     router.feed, router.query         read the text: it needs a backend of its own
//	router.go     router.needBackend
//	queue.go      pool.queueClient                  takes a free one, or waits for pool.dispatch
//	forwarder.go  client.attach                     links it and applies the client's settings
//	transport.go  client.Look, client.OnData        the same bytes again
//	forwarder.go  forwarder.feed, forwarder.query   record its effects, and queue its unit
//	transport.go  transport.toServer                the bytes are sent at the end of the turn
//	answer.go     backend.OnData, backend.emit      pass the answer to the unit at the head
//	backend.go    backend.ended                     the unit is complete
//	answer.go     client.answered, responder.settled update the session
//	backend.go    backend.settle                    nothing else is in flight
//	answer.go     client.backendQuiet               gives the backend back
//
// In a lane, with the hint batch:
//
//	transport.go  client.OnData, client.feed        as above
//	router.go     router.feed, router.query         it may join a group
//	router.go     router.laneForText, router.unitOf copy it into a unit
//	lane.go       lane.push                         queues the unit
//	lane.go       lane.Look, lane.pump, lane.start  take a group and a backend
//	rows.go       rowsPlan.gather                   a rows lane makes one statement of it
//	lane.go       lane.send                         BEGIN, the writes, PING, COMMIT
//	backend.go    backend.send                      each of them, at once
//	answer.go     backend.OnData, backend.emit      collect the answer in the unit
//	backend.go    backend.ended, backend.settle     when the last answer is complete
//	lane.go       lane.backendQuiet, lane.conclude  decide the outcome of each member
//	rows.go       group.conclude                    of a statement of several rows
//	lane.go       lane.acknowledge                  writes the client's answer
//	answer.go     responder.grouped                 updates the session
//
// Pinned, or in a transaction: the client has its backend already.
//
//	transport.go  client.OnData, client.feed        as above
//	forwarder.go  forwarder.feed, forwarder.query   record its effects, and queue its unit
//	transport.go  transport.toServer                the bytes are sent at the end of the turn
//	answer.go     backend.OnData, backend.emit      as above
//	backend.go    backend.ended                     as above
//	answer.go     client.answered, responder.settled update the session
//	backend.go    backend.settle                    as above
//	answer.go     client.backendQuiet               the client keeps it
//
// A prepared INSERT takes the same ways, through router.execute and forwarder.execute.
package mysql
