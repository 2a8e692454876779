package mysql

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/backup/archive"
	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
)

// ownAccounts belong to the server.
var ownAccounts = []string{"mysql.sys", "mysql.session", "mysql.infoschema", "mariadb.sys"}

// account is a user or role.
type account struct {
	user, host string
	role       bool
}

func (a account) sql() string {
	if a.role {
		return my.Literal(a.user)
	}
	return my.Literal(a.user) + "@" + my.Literal(a.host)
}

// globals writes users, roles and grants: each account's statements after a comment
// with its name, those that make accounts before those that grant anything.
func (r *runner) globals(ctx context.Context) error {
	accounts, err := r.accounts(ctx)
	if err != nil {
		return fmt.Errorf("list accounts: %w", err)
	}
	var g my.Globals
	for _, a := range accounts {
		entry, err := r.account(ctx, a)
		if unknown := uint16(1133); my.ErrorCode(err) == unknown {
			r.warn("account %s is in the server's table and not in force (skip_name_resolve?): it is left out", a.sql())
			continue
		}
		if err != nil {
			return fmt.Errorf("read account %s: %w", a.sql(), err)
		}
		g.Accounts = append(g.Accounts, entry)
	}
	return r.writeChunk(ctx, archive.ChunkInfo{Path: my.GlobalsPath, Kind: archive.KindGlobals, Content: "sql"}, func(w io.Writer) error {
		_, err := io.WriteString(w, g.String())
		return err
	})
}

func (r *runner) accounts(ctx context.Context) ([]account, error) {
	sql := "SELECT user, host, 'N' FROM mysql.user ORDER BY 1, 2"
	if r.maria {
		sql = "SELECT user, host, is_role FROM mysql.user ORDER BY is_role = 'N', 1, 2"
	}
	var out []account
	err := r.main.Query(ctx, sql, func(row []string) error {
		if !slices.Contains(ownAccounts, row[0]) && row[0] != "PUBLIC" {
			out = append(out, account{row[0], row[1], row[2] == "Y"})
		}
		return nil
	})
	return out, err
}

func (r *runner) account(ctx context.Context, a account) (my.Account, error) {
	out := my.Account{Name: a.sql()}
	add := func(sql string) error {
		return r.main.Query(ctx, sql, func(row []string) error {
			out.Statements = append(out.Statements, row[0])
			return nil
		})
	}
	if a.role {
		out.Statements = append(out.Statements, "CREATE ROLE "+a.sql())
	} else {
		if !r.maria && r.main.Version() >= 80017 {
			// What hashes hold is no text.
			if err := r.main.Exec(ctx, "SET SESSION print_identified_with_as_hex = ON"); err != nil {
				return out, err
			}
		}
		if err := add("SHOW CREATE USER " + a.sql()); err != nil {
			return out, err
		}
	}
	if r.opts.NoRolePasswords {
		out.Statements = withoutSecret(out.Statements)
	}
	made := len(out.Statements)
	if err := add("SHOW GRANTS FOR " + a.sql()); err != nil {
		return out, err
	}
	for i, sql := range out.Statements[made:] {
		// MariaDB says again what CREATE USER has said.
		if before, _, ok := strings.Cut(sql, " IDENTIFIED "); ok && strings.Contains(sql, " ON *.* TO ") {
			if strings.HasSuffix(sql, " WITH GRANT OPTION") {
				before += " WITH GRANT OPTION"
			}
			out.Statements[made+i] = before
		}
	}
	return out, nil
}

// withoutSecret leaves out how accounts prove who they are.
func withoutSecret(statements []string) []string {
	for i, sql := range statements {
		if before, _, ok := strings.Cut(sql, " IDENTIFIED "); ok {
			statements[i] = before + " ACCOUNT LOCK"
		}
	}
	return statements
}
