package mysql

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
)

// NewDatabase returns the address of an empty database, in go-sql-driver's form, for tests
// outside the package.
func NewDatabase(t *testing.T) string {
	t.Helper()
	labtest.RequireMariaDB(t)
	m := mariadb.get(t)
	return fmt.Sprintf("root@tcp(%s)/%s", m.Addr(), database(t, m))
}
