// Package handover transfers, from a proxy's process to the one that replaces it, the
// sockets that it listens on and the clients whose sessions can be serialized. It is
// independent of the database.
//
// The next process connects to a Unix socket of the one that serves. Both check that the
// other is of the same user. They agree on a version, and then
//
//	the one that serves                     the next
//	  sockets, what is known of logins ──►
//	                                        prepares; if it cannot, it closes
//	                                    ◄── take
//	  stops accepting
//	  go ──►                                starts accepting
//	  a client ──►
//	                                    ◄── its receipt; then serves it
//	  ...
//	                                    ◄── a question about a client that it does not have
//	  its answer ──►
//	  done ──► and ends
//
// A client belongs to one process at any time. The first owns it until it has read the
// receipt, and does nothing with it meanwhile; the next serves it only after it has written
// the receipt. If the next process ends, the first reads all receipts, continues to serve
// the clients without one, and accepts again. It keeps its listening sockets until it ends,
// so no connection is refused. If the next process hangs, the first does the same after it
// has shut the connection down in both directions, so that the next process cannot write a
// receipt that the first does not read; the next process ends when it notices.
package handover
