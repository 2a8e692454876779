package bouncer

import (
	"context"
	"errors"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// unmatched is a secret that no password matches, for a user whose password is NULL.
var unmatched = pgwire.Secret{}

// lookUp runs auth_query as a user. found is false if there is no such user.
func (l *login) lookUp(ctx context.Context, as string) (secret pgwire.Secret, found bool, err error) {
	where, query := l.st.Text("auth_dbname"), l.st.Text("auth_query")
	db := l.db
	if l.db != nil {
		if l.db.AuthDBName != "" {
			where = l.db.AuthDBName
		}
		if l.db.AuthQuery != "" {
			query = l.db.AuthQuery
		}
	}
	if where == "" && db == nil {
		where = consoleName
	}
	if where == consoleName {
		l.d.b.log.Error(`cannot use the reserved "pgbouncer" database as an auth_dbname`, "client", l.String())
		return unmatched, false, refusal("bouncer config error")
	}
	if where != "" {
		var ok bool
		if db, ok = l.d.database(l.st, where); !ok {
			l.d.b.log.Error(`authentication database "`+where+`" is not configured.`, "client", l.String())
			return unmatched, false, refusal("bouncer config error")
		}
	}
	if l.d.b.srv.GateOf(db.Name).Disabled {
		return unmatched, false, refusal("authentication database %q is disabled", db.Name)
	}
	l.d.b.seen(db.Name)
	row, err := l.d.b.ask(ctx, l.d.Route(db.Name, as), as, query, l.user)
	var e *pgwire.Error
	var asking *postgres.QueryError
	switch {
	case errors.As(err, &asking):
		l.d.b.log.Error("S: error in auth_query: "+err.Error(), "client", l.String())
		return unmatched, false, refusal("bouncer config error")
	case errors.As(err, &e):
		l.d.b.log.Info("server login failed", "database", db.Name, "user", as, "error", err)
		return unmatched, false, err
	case err != nil:
		l.d.b.log.Error("auth_query: "+err.Error(), "client", l.String())
		return unmatched, false, refusal("bouncer config error")
	case row == nil:
		return unmatched, false, nil
	case len(row) != 2:
		l.d.b.log.Error("auth_query: want 2 columns, name and secret", "client", l.String(), "columns", len(row))
		return unmatched, false, refusal("bouncer config error")
	case row[1] == nil:
		return unmatched, true, nil
	}
	if secret, err = pgwire.ParseSecret(string(row[1])); err != nil {
		l.d.b.log.Error("auth_query: "+err.Error(), "client", l.String())
		return unmatched, true, nil
	}
	return secret, true, nil
}
