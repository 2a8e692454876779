package mysql

import (
	"context"
	"net"
	"time"
)

// AnswerWithin sets how long a client may take to answer the greeting.
func AnswerWithin(c *Config, d time.Duration) { c.firstAnswer = d }

// KeepLess has less of an answer wait in weir: until it is complete, and for a client that
// shares the connection.
func KeepLess(c *Config) { c.held, c.sharedOut = MostHeld, MostSharedOut }

// What KeepLess sets.
const (
	MostHeld      = 1 << 20
	MostSharedOut = 6 << 20
)

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

// CatalogueReadings is how often a catalogue was read.
func (s *Server) CatalogueReadings(ctx context.Context) (n uint64) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			for _, k := range l.catalogues {
				n += k.begun
			}
		})
	}
	return n
}

// AgeFacts makes what weir knows of names and tables too old to use, as when no statement needs
// it for a while.
func (s *Server) AgeFacts(ctx context.Context, names, tables bool) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			for _, k := range l.catalogues {
				k.writes.slow = false
				if k.used = false; names {
					k.seen -= catalogueOld
				}
			}
			for _, p := range l.PoolList {
				for _, f := range p.tables.m {
					if tables {
						f.at -= tableKeep
					}
				}
			}
		})
	}
}

// LongestRead is the length of the longest text that a loop itself has read.
func (s *Server) LongestRead(ctx context.Context) (n int) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n = max(n, l.longest) })
	}
	return n
}

// GatherAtMost has messages of more than n bytes passed on unread.
func (s *Server) GatherAtMost(ctx context.Context, n int) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { l.gathers = n })
	}
}

// RestWithin bounds the pauses in messages that are refused.
func (s *Server) RestWithin(ctx context.Context, d time.Duration) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { l.restWithin = d })
	}
}

// AgeMembers has the first member of each lane wait for d longer than it does. It
// returns how many members wait.
func (s *Server) AgeMembers(ctx context.Context, d time.Duration) (waiting int) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			for _, p := range l.PoolList {
				for i := range p.Excl {
					if ln := p.Excl[i].Lane; ln != nil {
						p.Excl[i].Since -= d
						aged := false
						ln.Find(func(u *unit) bool {
							if !aged {
								u.lanedAt -= d
							}
							waiting, aged = waiting+1, true
							return false
						})
					}
				}
			}
		})
	}
	return waiting
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

// Hold keeps the loops from their work until release is called.
func (s *Server) Hold() (release func()) {
	free := make(chan struct{})
	for _, l := range s.Loops {
		held := make(chan struct{})
		if l.Post(func() { close(held); <-free }) {
			<-held
		}
	}
	return func() { close(free) }
}

// AskForFactsAgain has the pools ask at once for what their server has refused to tell.
func (s *Server) AskForFactsAgain(ctx context.Context) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			for _, p := range l.PoolList {
				p.facts.askAgain = min(p.facts.askAgain, 1)
			}
		})
	}
}

// KillListSQL is the query by which a KILL finds out whether a connection is weir's.
func KillListSQL(id uint32) string { return (&killOrder{id: id}).listSQL() }

// WaitForFacts sets how long a write waits for facts.
func (s *Server) WaitForFacts(ctx context.Context, d time.Duration) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { l.patience = d })
	}
}

// QueueFor sets the queue timeout.
func (s *Server) QueueFor(ctx context.Context, d time.Duration) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			for _, p := range l.PoolList {
				p.Limits.QueueTimeout = d
			}
		})
	}
}

// FactsWaits is how many writes wait for the catalogue, and how long the first one does.
func (s *Server) FactsWaits(ctx context.Context) (n int, longest time.Duration) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			for _, k := range l.catalogues {
				n += len(k.writes.waiting)
				for _, w := range k.writes.waiting {
					longest = max(longest, l.Now-w.since)
				}
			}
		})
	}
	return n, longest
}

// AgeFactsWaits has the writes that wait for the catalogue wait for d longer than they do.
func (s *Server) AgeFactsWaits(ctx context.Context, d time.Duration) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() {
			for _, k := range l.catalogues {
				for _, w := range k.writes.waiting {
					w.since -= d
				}
			}
		})
	}
}
