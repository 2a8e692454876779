package process_test

import (
	"context"
	"testing"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	proxycmd "github.com/weirdb/weir/internal/proxy/cmd"
)

// program has the verbs of the proxy: these tests start processes by weir's command line.
var program = &clitest.Program{Verbs: proxycmd.Verbs}

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
