// Package postgres is the PostgreSQL side of the proxy: it runs the sessions of many clients
// over few connections to the server, pipelines reads of several clients, and groups writes
// that ask for it. docs/ARCHITECTURE.md has the map of its files.
//
// # The walk of an INSERT
//
// The functions that a statement passes on its way to the server and back, with their
// files. Files that are only consulted on the way (texts.go, rowtext.go, pins.go,
// settings.go, statements.go) are left out. A text is split into tokens and judged once: while
// its message waits, texts.own keeps the result, for the same bytes read in the same way.
//
// Plain, outside a transaction and without a hint:
//
//	transport.go  client.OnData                     cuts a message from what the socket has read
//	router.go     router.feed, router.query         read the text: it needs a backend of its own
//	router.go     router.needBackend
//	queue.go      pool.queueClient                  takes a free one, or waits for pool.dispatch
//	forwarder.go  client.attach                     links it, in the client's settings
//	transport.go  client.Look, client.OnData        the same bytes again
//	forwarder.go  forwarder.feed, forwarder.query   record its effects
//	forwarder.go  forwarder.open                    queues its unit
//	transport.go  transport.toServer                the bytes leave at the end of the turn
//	answer.go     backend.OnData, backend.emit      give the answer to the unit at the head
//	backend.go    backend.ready                     the unit is complete
//	answer.go     client.answered, responder.settled what it means for the session
//	backend.go    backend.settle                    nothing else is under way
//	answer.go     client.backendQuiet, client.detach give the backend back
//
// In a lane, with the hint batch:
//
//	transport.go  client.OnData                     as above
//	router.go     router.feed, router.query         it may join a group
//	router.go     router.laneForText                finds the lane of a new text,
//	router.go     router.knownRow                   of one that differs in its constants alone
//	router.go     router.pushRow, router.unitOf     copy it into a unit
//	lane.go       lane.push                         queues the unit
//	lane.go       lane.Look, lane.pump, lane.start  take a group and a backend
//	rows.go       lane.sendRows, group.send         a rows lane: one statement of several rows
//	backend.go    backend.send                      a solo lane: each, and lane.sendMarker
//	answer.go     backend.OnData                    gathers the answer
//	rows.go       group.message, group.ready, group.settle, group.answer a rows lane's
//	backend.go    backend.ready, backend.settle     when the last one is there
//	lane.go       lane.backendQuiet, lane.ack       write the client's answer
//	answer.go     responder.grouped                 what it means for the session
//
// Pinned, or in a transaction: the client has its backend already.
//
//	transport.go  client.OnData                     as above
//	forwarder.go  forwarder.feed, forwarder.query   record its effects
//	forwarder.go  forwarder.open                    queues its unit
//	transport.go  transport.toServer                the bytes leave at the end of the turn
//	answer.go     backend.OnData, backend.emit      as above
//	backend.go    backend.ready                     as above
//	answer.go     client.answered, responder.settled what it means for the session
//	backend.go    backend.settle                    as above
//	answer.go     client.backendQuiet               the client keeps it
//
// A prepared INSERT takes the same ways, message by message: through router.extended,
// router.collect and router.sendWhole, or through forwarder.parse, forwarder.bind and
// forwarder.other.
package postgres
