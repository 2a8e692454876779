package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	pg "github.com/weirdb/weir/internal/backup/bulk/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// sandbox lets a throwaway server restore an archive whose code is not trusted: functions that
// others created at the source must not run here as a superuser, who may run programs.
//
// Rows, indexes, constraints and materialized views, which call functions of the archive, are
// created by a separate login that is not a superuser, but a member of all roles of the
// archive; objects keep their owners. Those roles are not superusers here either, whatever they
// were, and the server's own superuser is renamed. A function cannot regain rights that its
// session never had.
type sandbox struct {
	user, password string // the unprivileged login

	mu    sync.Mutex
	admin *pg.Session
}

// newSandbox creates the logins, and makes cfg use the superuser's.
func newSandbox(ctx context.Context, cfg *pgwire.ConnectConfig) (_ *sandbox, err error) {
	b := &sandbox{user: "weir_sandbox_" + secret(), password: secret()}
	s, err := pg.Connect(ctx, *cfg, "")
	if err != nil {
		return nil, err
	}
	admin, password := "weir_admin_"+secret(), secret()
	for _, sql := range []string{
		"CREATE ROLE " + admin + " LOGIN SUPERUSER PASSWORD '" + password + "'",
		"CREATE ROLE " + b.user + " LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB PASSWORD '" + b.password + "'",
	} {
		if err == nil {
			err = s.Exec(ctx, sql)
		}
	}
	if err = errors.Join(err, s.Close()); err != nil {
		return nil, fmt.Errorf("make logins for a sandbox: %w", err)
	}
	before := cfg.User
	cfg.User, cfg.Password = admin, password
	if b.admin, err = pg.Connect(ctx, *cfg, ""); err != nil {
		return nil, err
	}
	// The archive may have a role of this name.
	if err := b.admin.Exec(ctx, "ALTER ROLE "+pg.Ident(before)+" RENAME TO weir_own_"+secret()); err != nil {
		return nil, errors.Join(fmt.Errorf("rename the superuser: %w", err), b.admin.Close())
	}
	return b, nil
}

func secret() string {
	b := make([]byte, 12)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func (b *sandbox) close() error {
	if b == nil {
		return nil
	}
	return b.admin.Close()
}

// role creates a role of the archive without any rights.
func (b *sandbox) role(ctx context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.admin.Exec(ctx, "CREATE ROLE "+pg.Ident(name)+" NOLOGIN; GRANT "+pg.Ident(name)+" TO "+b.user)
	if pg.ErrorCode(err) == "42710" { // another worker has created it
		return nil
	}
	return err
}

var noRole = regexp.MustCompile(`^role "(.*)" does not exist$`)

// provide creates the role that an error says is missing, and reports whether it did: then what
// failed can be repeated.
func (b *sandbox) provide(ctx context.Context, err error) bool {
	var server *pgwire.Error
	if b == nil || !errors.As(err, &server) || server.Code != "42704" && server.Code != "22023" {
		return false
	}
	name := noRole.FindStringSubmatch(server.Message)
	return name != nil && b.role(ctx, name[1]) == nil
}

// tame returns the harmless form of a statement about roles and tablespaces, or "": without
// rights beyond the database's objects, and without files of this machine.
func tame(sql string) string {
	for _, prefix := range []string{"CREATE TABLESPACE ", "ALTER TABLESPACE ", "COMMENT ON TABLESPACE ", "SECURITY LABEL "} {
		if strings.HasPrefix(sql, prefix) {
			return ""
		}
	}
	if strings.Contains(sql, " ON TABLESPACE ") || strings.Contains(sql, " ON PARAMETER ") || strings.HasPrefix(sql, "GRANT pg_") {
		return ""
	}
	rest, ok := strings.CutPrefix(sql, "ALTER ROLE ")
	if !ok {
		return sql
	}
	if attributes, ok := strings.CutPrefix(skipIdent(rest), " WITH "); ok {
		role := rest[:len(rest)-len(skipIdent(rest))]
		words := strings.Fields(attributes)
		kept := "NOLOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS"
		if len(words) > 1 && (words[1] == "INHERIT" || words[1] == "NOINHERIT") {
			kept += " " + words[1]
		}
		return "ALTER ROLE " + role + " WITH " + kept
	}
	return "" // settings apply to sessions of these roles, and there are none
}

// admit makes the unprivileged login a member of all current roles.
func (b *sandbox) admit(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	err := b.admin.Query(ctx, `SELECT rolname FROM pg_catalog.pg_roles
WHERE NOT rolsuper AND rolname OPERATOR(pg_catalog.!~) '^pg_' AND rolname <> `+pg.Literal(b.user), func(row []string) error {
		names = append(names, pg.Ident(row[0]))
		return nil
	})
	if err != nil || len(names) == 0 {
		return err
	}
	return b.admin.Exec(ctx, "GRANT "+strings.Join(names, ", ")+" TO "+b.user)
}

// harmless are the kinds of entries after rows that call no function of the archive when they
// are created; some of them only a superuser may create.
var harmless = map[string]bool{
	"COMMENT": true, "SECURITY LABEL": true, "ACL": true, "DEFAULT ACL": true, "PUBLICATION": true, "PUBLICATION TABLE": true,
	"PUBLICATION TABLES IN SCHEMA": true, "SUBSCRIPTION": true, "SUBSCRIPTION TABLE": true, "EVENT TRIGGER": true, "TRIGGER": true,
	"RULE": true, "POLICY": true, "ROW SECURITY": true, "STATISTICS": true, "INDEX ATTACH": true,
}

// supreme are the kinds that only a superuser may own; no role of the archive is one.
var supreme = map[string]bool{"FOREIGN DATA WRAPPER": true, "SUBSCRIPTION": true, "EVENT TRIGGER": true}

// giveSupreme transfers such an object to its owner, who is a superuser only within this
// transaction. One at a time: if two alter a role concurrently, one fails.
func giveSupreme(owner, sql string) []string {
	const lock = 7305116340285
	role := pg.Ident(owner)
	return []string{
		fmt.Sprintf("SELECT pg_catalog.pg_advisory_xact_lock(%d)", lock),
		"ALTER ROLE " + role + " SUPERUSER", sql, "ALTER ROLE " + role + " NOSUPERUSER",
	}
}

// A refresher fills materialized views.
type refresher struct {
	*database
	s *pg.Session
}

// refresh runs the statement that fills a view, with the rights of its owner. In a sandbox, an
// owner that was a superuser lacks rights: then the view belongs for a moment to the login that
// has the rights of all roles of the archive.
func (r refresher) refresh(ctx context.Context, sql string) error {
	err := r.s.Exec(ctx, sql)
	view, is := strings.CutPrefix(sql, "REFRESH MATERIALIZED VIEW ")
	if r.sandbox == nil || !is || pg.ErrorCode(err) != "42501" { // insufficient_privilege
		return err
	}
	row, asking := r.main.Row(ctx, "SELECT relowner::pg_catalog.regrole FROM pg_catalog.pg_class WHERE oid = "+pg.Literal(view)+"::pg_catalog.regclass")
	if asking != nil {
		return errors.Join(err, asking)
	}
	alter := "ALTER MATERIALIZED VIEW " + view + " OWNER TO "
	if giving := r.main.Exec(ctx, alter+r.sandbox.user); giving != nil {
		return errors.Join(err, giving)
	}
	second := r.s.Exec(ctx, sql)
	if giving := r.main.Exec(ctx, alter+row[0]); giving != nil {
		return errors.Join(err, giving)
	}
	if second != nil {
		return err
	}
	r.Warn("materialized view %s was filled with the rights of all roles of the backup together, for its owner, %s, has no superuser's rights here: %v", view, row[0], err)
	return nil
}

// give transfers an object to its owner with the superuser's rights: the unprivileged login
// could do so only if the owner may create such objects already.
func (d *database) give(ctx context.Context, owner []string) error {
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	return errors.Join(d.exec(ctx, s, strings.Join(owner, ";\n")), s.Close())
}

// ownNames match the names of the sandbox's superusers, which own objects that a server creates
// implicitly, such as a range's functions and an extension's views.
var ownNames = regexp.MustCompile(`weir_(own|admin)_[0-9a-f]{24}`)

// standsIn reports whether a difference in owner or privileges is only that one of the
// sandbox's superusers replaces one of the source.
func standsIn(d pg.Difference) bool {
	if d.Want == nil || d.Got == nil || !d.Want.OfOwner() && !d.Want.OfRights() || !ownNames.MatchString(d.Got.Text) {
		return false
	}
	for _, name := range strings.FieldsFunc(d.Want.Text, func(r rune) bool { return strings.ContainsRune(`/=,`, r) }) {
		if sameItems(ownNames.ReplaceAllLiteralString(d.Got.Text, name), d.Want.Text) {
			return true
		}
	}
	return false
}

// sameItems compares lists whose order depends on names.
func sameItems(a, b string) bool {
	x, y := strings.Split(a, ","), strings.Split(b, ",")
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}
