//go:build linux

package proxycmd

import (
	"context"
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

var program = &clitest.Program{Verbs: Verbs}

// The servers of tests that change nothing of them, but for databases and tables of their own.
var (
	sharedPostgres = labtest.Share(func(ctx context.Context) (*lab.Postgres, error) {
		return lab.StartPostgres(ctx, lab.PostgresConfig{Durability: lab.Fast})
	})
	sharedMariaDB = labtest.Share(func(ctx context.Context) (*lab.MySQL, error) {
		return lab.StartMariaDB(ctx, lab.MySQLConfig{Durability: lab.Fast, Light: true})
	})
)

func TestMain(m *testing.M) { program.Main(m) }
