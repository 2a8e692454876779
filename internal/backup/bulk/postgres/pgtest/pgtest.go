// Package pgtest runs scripts for tests of backups.
package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/lab"
)

// Psql runs a script in a database as psql does, each statement in a transaction of its own,
// and returns the output of psql -q -A -t. It starts psql only for scripts with backslashes,
// such as psql's own commands: starting it takes longer than most scripts.
func Psql(p *lab.Postgres, db, script string) (string, error) {
	if strings.Contains(script, `\`) {
		cmd := exec.Command(filepath.Join(p.BinDir(), "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", p.DSN(db), "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("psql: %w\n%s", err, stderr.String())
		}
		return strings.TrimSpace(string(out)), nil
	}
	ctx := context.Background() // a test's context has ended in its cleanups
	conn, err := pgconn.Connect(ctx, p.DSN(db))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var lines []string
	for statement, err := range pg.Statements(strings.NewReader(script)) {
		if err != nil {
			return "", err
		}
		results, err := conn.Exec(ctx, statement).ReadAll()
		if err != nil {
			return "", fmt.Errorf("%s: %w", statement, err)
		}
		for _, result := range results {
			for _, row := range result.Rows {
				lines = append(lines, string(bytes.Join(row, []byte("|"))))
			}
		}
	}
	return strings.TrimSpace(strings.Join(lines, "\n")), nil
}
