package postgres

import "context"

// Scans is how many texts of clients were read.
func (s *Server) Scans(ctx context.Context) (n uint64) {
	for _, l := range s.Loops {
		_ = l.Call(ctx, func() { n += l.scans })
	}
	return n
}
