package mysql

import "github.com/weirdb/weir/internal/wire/mywire"

// errBorrowed is the error for a client that would get in only because weir itself needs no
// password.
func errBorrowed(user string) *mywire.Error {
	return mywire.NewError(mywire.ErrAccessDenied,
		"weir does not let '%s' in: the server asks weir for no password, and weir cannot know that this client may do the same (give the account a password, choose how weir itself checks clients: --mysql-auth or --mysql-auth-file, connect over a Unix socket as weir's own user, or let everybody in who can reach weir over a loopback address: --trust-loopback)", user)
}
