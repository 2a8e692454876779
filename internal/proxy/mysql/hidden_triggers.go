package mysql

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql/catalogue"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles accounts that cannot see triggers, which is most that can only read and
// write rows. If the DSN's user can see the triggers of all databases, weir reads them as that
// user. Otherwise any write may have any effect, and the log says what to grant.

// asksDSN reports whether the DSN's user may see more than the account does.
func (k *accountCatalogue) asksDSN(r *catalogueLoad) bool {
	dsn := k.l.cfg.MySQL.User
	return r.err == nil && r.Blind() && dsn != "" && dsn != k.user
}

// seeByDSN reads the triggers as the DSN's user, and ends the load.
func (k *accountCatalogue) seeByDSN(r *catalogueLoad) {
	srv := k.l.srv
	srv.Background.Go(func() {
		ctx, cancel := context.WithTimeout(srv.DialCtx, srv.cfg().ConnectTimeout)
		defer cancel()
		triggers, err := srv.allTriggersAgain(ctx)
		k.l.Post(func() {
			k.loading--
			if err != nil {
				r.missed = passing(err)
				srv.Log.Debug("the DSN's user does not show triggers", "user", k.user, "error", err)
			} else {
				r.SeeAll(triggers)
			}
			k.loaded(r)
		})
	})
}

const (
	// maxAsks is how often one load of the catalogue asks for the triggers while that fails for a
	// passing reason, and asksPause the pause after the first failure, which then doubles.
	maxAsks   = 3
	asksPause = 100 * time.Millisecond
)

// allTriggersAgain is allTriggers, repeated within bounds while it fails for a passing reason: a
// client that writes before the next load would keep its connection to its end.
func (s *Server) allTriggersAgain(ctx context.Context) (rows [][][]byte, err error) {
	pause := asksPause
	for try := 1; ; try++ {
		if rows, err = s.allTriggers(ctx); err == nil || try == maxAsks || !passing(err) {
			return rows, err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return nil, err
		}
	}
}

// passing reports whether a lookup may succeed if it is repeated: a connection was lost, or the
// server had no room for it. Further refused logins could lock the account, and after a timeout
// each repetition may take as long again.
func passing(err error) bool {
	switch mywire.CodeOf(err) {
	case 0:
		var network net.Error
		return !errors.Is(err, catalogue.ErrSeesNoTriggers) && !(errors.As(err, &network) && network.Timeout())
	case mywire.ErrTooManyConnections, mywire.ErrUserLimit, mywire.ErrServerShutdown, mywire.ErrAborting, mywire.ErrNetRead, mywire.ErrNetReadInterrupted,
		mywire.ErrNetWrite, mywire.ErrNetWriteInterrupted, mywire.ErrQueryInterrupted, mywire.ErrQueryTimeout, mywire.ErrMariaStatementTimeout,
		mywire.ErrMariaConnectionKilled, mywire.ErrLockWaitTimeout, mywire.ErrDeadlock:
		return true
	}
	return false
}

// allTriggers reads the triggers of all databases as the DSN's user.
func (s *Server) allTriggers(ctx context.Context) ([][][]byte, error) {
	conn, _, err := s.visit(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	server := myscan.Mode{MariaDB: conn.IsMariaDB(), Version: versionID(conn.Greeting.Version)}
	return catalogue.AllTriggers(ctx, conn, s.cfg().MySQL.User, server)
}

// sayBlind logs, once for each account, what to grant.
func (k *accountCatalogue) sayBlind(r *catalogueLoad) {
	if !r.Blind() {
		return
	}
	srv := k.l.srv
	account, databases, grant := r.Grant()
	if _, said := srv.blind.LoadOrStore(account, true); said {
		return
	}
	srv.Log.Warn("the account may not see triggers, so sessions that write keep their connection: let it see them, or have --mysql name a user with TRIGGER on all databases, or declare triggers and functions harmless (--mysql-trust-functions '*')",
		"user", k.user, "databases", databases, "grant", grant)
}
