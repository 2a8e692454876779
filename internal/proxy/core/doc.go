// Package core has what the two sides of the proxy do alike. It speaks no protocol.
//
// A side embeds a Server, its event loops a Loop, its pools a Base and its backends a
// Conn. What core asks of them it asks through interfaces of its own (EventLoop, Client,
// Pool, Side, Dialect), and never in the course of a statement that finds a backend.
// The admin console is here as well: its commands and tables; a side adds how its
// protocol speaks.
package core
