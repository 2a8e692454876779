package postgres

import "testing"

// NewDatabase returns the address of an empty database, for tests outside the package.
func NewDatabase(t *testing.T) string {
	t.Helper()
	return newRig(t, server(t)).dsn
}
