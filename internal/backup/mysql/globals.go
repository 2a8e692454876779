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

// globals writes users, roles and grants: each account's statements after a comment with its
// name, those that create accounts before those that grant.
func (r *runner) globals(ctx context.Context) error {
	accounts, err := r.accounts(ctx)
	if err != nil {
		return fmt.Errorf("list accounts: %w", err)
	}
	var g my.Globals
	if g.Accounts, err = r.linked(ctx); err != nil {
		return err
	}
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
	if public, err := r.public(ctx); err != nil {
		return err
	} else if len(public.Statements) > 0 {
		g.Accounts = append(g.Accounts, public)
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
			// Password hashes are bytes, not text.
			if err := r.main.Exec(ctx, "SET SESSION print_identified_with_as_hex = ON"); err != nil {
				return out, err
			}
		}
		if err := add("SHOW CREATE USER " + a.sql()); err != nil {
			return out, err
		}
	}
	var roles string
	if len(out.Statements) == 1 {
		out.Statements[0], roles = defaultRoles(out.Statements[0])
	}
	if r.opts.NoRolePasswords {
		out.Statements = withoutSecret(out.Statements)
	}
	made := len(out.Statements)
	if err := add("SHOW GRANTS FOR " + a.sql()); err != nil {
		return out, err
	}
	for i, sql := range out.Statements[made:] {
		// MariaDB repeats what CREATE USER has said.
		if before, _, ok := strings.Cut(sql, " IDENTIFIED "); ok && strings.Contains(sql, " ON *.* TO ") {
			if strings.HasSuffix(sql, " WITH GRANT OPTION") {
				before += " WITH GRANT OPTION"
			}
			out.Statements[made+i] = before
		}
	}
	if roles != "" {
		out.Statements = append(out.Statements, "SET DEFAULT ROLE "+roles+" TO "+a.sql())
	}
	return out, nil
}

// defaultRoles splits the clause of default roles off MySQL's CREATE USER: the roles need not
// exist when the account is created, and must be granted before they are a default.
func defaultRoles(create string) (without, roles string) {
	const word, next = " DEFAULT ROLE ", " REQUIRE "
	for i := 0; i < len(create); {
		if strings.HasPrefix(create[i:], word) {
			roles = create[i+len(word):]
			end := 0
			for end < len(roles) && !strings.HasPrefix(roles[end:], next) {
				end = behind(roles, end)
			}
			return create[:i] + roles[end:], roles[:end]
		}
		i = behind(create, i)
	}
	return create, ""
}

// behind returns where the character, or the quoted name or string, at i ends.
func behind(sql string, i int) int {
	q := sql[i]
	if q != '\'' && q != '`' {
		return i + 1
	}
	for i++; i < len(sql); i++ {
		switch {
		case sql[i] == '\\' && q == '\'':
			i++
		case sql[i] != q:
		case i+1 < len(sql) && sql[i+1] == q:
			i++
		default:
			return i + 1
		}
	}
	return len(sql)
}

// public reads MariaDB's grants to PUBLIC, none by default.
func (r *runner) public(ctx context.Context) (my.Account, error) {
	out := my.Account{Name: my.Public}
	if !r.maria || r.main.Version() < 101100 {
		return out, nil
	}
	err := r.main.Query(ctx, "SHOW GRANTS FOR PUBLIC", func(row []string) error {
		if !strings.HasPrefix(row[0], "GRANT USAGE ON *.* TO ") || strings.HasSuffix(row[0], " WITH GRANT OPTION") {
			out.Statements = append(out.Statements, row[0])
		}
		return nil
	})
	if none := uint16(1141); my.ErrorCode(err) == none {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("read grants to PUBLIC: %w", err)
	}
	return out, nil
}

// linked reads the servers that tables are linked to, and loadable functions.
func (r *runner) linked(ctx context.Context) ([]my.Account, error) {
	var out []my.Account
	err := r.main.QueryNamed(ctx, "SELECT * FROM mysql.servers ORDER BY server_name", func(row map[string]string) error {
		out = append(out, my.Account{Name: my.ServerMark + my.Ident(row["server_name"]), Statements: []string{linkedServer(row, !r.opts.NoRolePasswords)}})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list servers that tables are linked to: %w", err)
	}
	returns := map[string]string{"0": "STRING", "1": "REAL", "2": "INTEGER", "4": "DECIMAL"}
	err = r.main.Query(ctx, "SELECT name, ret, dl, type FROM mysql.func ORDER BY name", func(row []string) error {
		kind := "FUNCTION "
		if row[3] == "aggregate" {
			kind = "AGGREGATE FUNCTION "
		}
		out = append(out, my.Account{
			Name:       my.LibraryMark + my.Ident(row[0]),
			Statements: []string{"CREATE " + kind + my.Ident(row[0]) + " RETURNS " + returns[row[1]] + " SONAME " + my.Literal(row[2])},
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list functions of libraries: %w", err)
	}
	return out, nil
}

// optionText escapes a string for the options of a server, which accept no other notation.
var optionText = strings.NewReplacer("'", "''", `\`, `\\`, "\n", `\n`, "\r", `\r`, "\x00", `\0`)

// linkedServer returns the statement that creates a row of mysql.servers, with or without its
// password.
func linkedServer(row map[string]string, secrets bool) string {
	var options []string
	for _, o := range [][2]string{{"HOST", "host"}, {"DATABASE", "db"}, {"USER", "username"}, {"PASSWORD", "password"}, {"SOCKET", "socket"}, {"OWNER", "owner"}} {
		if v := row[o[1]]; v != "" && (o[0] != "PASSWORD" || secrets) {
			options = append(options, o[0]+" '"+optionText.Replace(v)+"'")
		}
	}
	if port := row["port"]; port != "" && port != "0" {
		options = append(options, "PORT "+port)
	}
	if len(options) == 0 {
		options = []string{"HOST ''"} // one is needed
	}
	return "CREATE SERVER " + my.Ident(row["server_name"]) + " FOREIGN DATA WRAPPER " + my.Ident(row["wrapper"]) + " OPTIONS (" + strings.Join(options, ", ") + ")"
}

// withoutSecret removes the credentials of accounts from their statements.
func withoutSecret(statements []string) []string {
	for i, sql := range statements {
		if before, _, ok := strings.Cut(sql, " IDENTIFIED "); ok {
			statements[i] = before + " ACCOUNT LOCK"
		}
	}
	return statements
}
