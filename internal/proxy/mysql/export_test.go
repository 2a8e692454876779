package mysql

import (
	"context"
	"net"
	"time"
)

// AnswerWithin sets how long a client may take to answer the greeting.
func AnswerWithin(c *Config, d time.Duration) { c.firstAnswer = d }

// Transactions counts those of a set of GTIDs.
var Transactions = transactions

// TextBytes is the length of all texts that are kept for prepared statements.
func (s *Server) TextBytes(ctx context.Context) (n int) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			kept := map[*stmt]bool{}
			for _, p := range l.PoolList {
				for _, st := range p.stmts.byKey {
					kept[st] = true
				}
				for _, b := range p.Backends {
					for st := range b.prepared {
						kept[st] = true
					}
				}
			}
			for st := range kept {
				n += len(st.sql)
			}
		})
	}
	return n
}

// Scans is how many texts of clients were read.
func (s *Server) Scans(ctx context.Context) (n uint64) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n += l.scans })
	}
	return n
}

// GatherAtMost has messages of more than n bytes passed on unread.
func (s *Server) GatherAtMost(ctx context.Context, n int) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { l.gathers = n })
	}
}

// MetOnLoops is how many logins came to their good end on an event loop alone.
func (s *Server) MetOnLoops(ctx context.Context) (n uint64) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n += l.met })
	}
	return n
}

// Dial connects as to the server.
func (s *Server) Dial(ctx context.Context, address string) (net.Conn, error) {
	return s.cfg().MySQL.Dial(ctx, "tcp", address)
}
