package postgres

import "github.com/weirdb/weir/internal/wire/pgwire"

// borrowed is the refusal of a client that may not have what weir has.
func borrowed(user string) *pgwire.Error {
	e := pgwire.NewFatal(pgwire.CodeInvalidAuthorization,
		"weir does not let %q in: the server asks connections from weir's host for no password, and weir cannot know that this client may do the same", user)
	e.Hint = "Have the server ask weir's host for a password (pg_hba.conf), choose how weir itself checks clients (--auth), connect over a Unix socket as weir's own user, or let everybody in who can reach weir over a loopback address (--trust-loopback)."
	return e
}
