package mysql

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file notices that somebody has changed what a user may do, by a connection
// that weir does not carry. A connection keeps the global and the database's
// privileges that the user had when it was opened, and directly anyone who logs in has
// those of now. So the connections that logins open are asked, and where the answer
// is another than before, the user's pools are opened anew.

// grants remembers the privileges of users, as hashes. Safe for concurrent use.
type grants struct {
	seed maphash.Seed
	mu   sync.Mutex
	seen map[string]granted // guarded by mu
}

type granted struct {
	hash uint64
	at   time.Duration
}

const (
	// grantsKeep is how long an answer holds.
	grantsKeep = time.Second
	// maxGrants bounds what is remembered.
	maxGrants = 1000
)

// checkGrants asks a new connection what its user may do, and has the user's pools
// renewed if that is not what it was. It returns the server's error if the user has
// to change the password first: a server then lets in and refuses everything else,
// which the connections that the pool has would not.
func (s *Server) checkGrants(ctx context.Context, user string, conn *mywire.Server) *mywire.Error {
	g := &s.grants
	now := s.monotonic()
	g.mu.Lock()
	old, known := g.seen[user]
	g.mu.Unlock()
	if known && now-old.at < grantsKeep {
		return nil
	}
	rows, err := conn.Query(ctx, "SHOW GRANTS")
	if mywire.CodeOf(err) == mywire.ErrMustChangePassword {
		return mywire.NewError(mywire.ErrMustChangePassword, "Your password has expired: change it on a connection to the server itself, not by weir")
	}
	if err != nil {
		return nil // what it may do is not known; the server will say
	}
	var h maphash.Hash
	h.SetSeed(g.seed)
	for _, r := range rows {
		for _, v := range r {
			_, _ = h.WriteString(v.String)
			_ = h.WriteByte(0)
		}
	}
	is := granted{h.Sum64(), now}
	g.mu.Lock()
	if g.seen == nil || len(g.seen) >= maxGrants {
		g.seen = make(map[string]granted)
	}
	g.seen[user] = is
	g.mu.Unlock()
	if known && old.hash != is.hash {
		s.log.Info("privileges have changed; connections are opened anew", "user", user)
		s.eachPool(nil, func(p *pool) {
			if p.key.user == user {
				p.renew()
			}
		})
	}
	return nil
}
