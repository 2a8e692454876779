// Package handover carries what a proxy has from its process to the next one: the
// sockets that it listens on, and clients whose sessions are data. It knows no database.
//
// The next process connects to a Unix socket of the one that serves. Both check that the
// other is of the same user. They agree on a version, and then
//
//	the one that serves                     the next
//	  sockets, what is known of logins ──►
//	                                        gets ready; if it cannot, it hangs up
//	                                    ◄── take
//	  accepts nobody from now on
//	  go ──►                                accepts from now on
//	  a client ──►
//	                                    ◄── its receipt; then it is served
//	  ...
//	                                    ◄── a question about a client that is not here
//	  its answer ──►
//	  done ──► and ends
//
// A client belongs to one process at any time. The first has it until it has read the
// receipt, and does nothing with it meanwhile; the next serves it only when the receipt is
// written. If the next process ends, whatever it has read or not, the first reads all
// receipts, goes on with the clients that it has none for, and accepts again. The
// first keeps the sockets that it listens on until it ends, so no connection is refused.
// The same happens if the next process hangs: the first closes the connection in both
// directions, so that no receipt can be written that it does not read, and when the next
// one finds that out, it ends.
package handover
