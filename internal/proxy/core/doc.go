// Package core has what the two sides of the proxy have in common. It speaks no protocol.
//
// A side embeds a Server, its event loops a Loop, its pools a Base and its backends a
// Conn. core calls a side through interfaces of its own (EventLoop, Client, Pool, Side,
// Dialect), and never on the path of a statement that finds a free backend. The admin
// console is here as well, with its commands and tables; a side adds the encoding of its
// protocol.
package core
