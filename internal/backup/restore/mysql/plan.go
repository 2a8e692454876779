package mysql

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	my "github.com/weirdb/weir/internal/backup/bulk/mysql"
	"github.com/weirdb/weir/internal/backup/restore"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// PlanReplay reads the log that Replay will read, and returns an error for what it cannot
// replay, before anything is changed: statements that change a database beside those that are
// replayed, changes that are logged as statements, XA transactions, and accounts and loadable
// functions that the log creates and the server has with another definition. Accounts that it
// has with the same one, as after an earlier replay, keep their grants; the warnings name them.
func PlanReplay(ctx context.Context, o ReplayOptions) (warnings []string, err error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	logs, err := my.OpenLogs(ctx, o.Storage, o.Dir, o.From)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	p := newReplayer(o)
	var changes []accountChange
	var loadables []loadable
	p.statement = func(r replayed) {
		if c := accountsOf(r.sql, r.ansi); c.verb != "" {
			c.replayed = r
			changes = append(changes, c)
		}
		if l := loadableOf(r.sql, r.ansi); l.name != "" {
			loadables = append(loadables, l)
		}
	}
	if o.UntilPosition != o.From {
		err = p.all(ctx, logs)
	}
	if err := errors.Join(err, logs.Close()); err != nil {
		return nil, fmt.Errorf("the log cannot be replayed after %s: %w", p.result.Position, err)
	}
	if len(changes)+len(loadables) == 0 {
		return nil, nil
	}
	cfg, err := mywire.ParseClientDSN(o.DSN)
	if err != nil {
		return nil, err
	}
	cfg.Database = ""
	s, err := my.Connect(ctx, cfg, "")
	if err != nil {
		return nil, err
	}
	warnings, err = planAccounts(ctx, s, changes)
	if err == nil {
		var more []string
		more, err = planLoadables(ctx, s, loadables)
		warnings = append(warnings, more...)
	}
	return warnings, errors.Join(err, s.Close())
}

// planAccounts tracks which accounts exist through the changes of a log.
func planAccounts(ctx context.Context, s *my.Session, changes []accountChange) (warnings []string, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	there := map[string]bool{} // accounts that the server has now
	err = s.Query(ctx, "SELECT user, host FROM mysql.user", func(row []string) error {
		there[accountName{row[0], row[1]}.key(false)] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the log makes or drops accounts; list those of the server: %w", err)
	}
	for _, c := range changes {
		for i, a := range c.accounts {
			key := a.key(c.roles && s.IsMariaDB())
			switch {
			case c.verb == "CREATE" && there[key] && !c.lenient:
				if err := c.same(ctx, s, i); err != nil {
					return nil, err
				}
				warnings = append(warnings, fmt.Sprintf("account %s, which the log makes, exists already with the same definition, and keeps what it has been granted", a))
				delete(there, key) // it is checked once
			case c.verb == "DROP":
				delete(there, key)
			case c.verb == "RENAME" && i%2 == 0:
				delete(there, key)
			case c.verb == "RENAME" && there[key]:
				return nil, fmt.Errorf("the log renames account %s to %s, which exists on the server: drop it there (DROP USER %s), or restore into another server", c.accounts[i-1], a, a)
			}
		}
	}
	return warnings, nil
}

// accountName is an account or, with an empty host, a role of MariaDB.
type accountName struct{ user, host string }

func (a accountName) String() string { return my.Literal(a.user) + "@" + my.Literal(a.host) }

// key returns the same string for all names of one account. Roles of MariaDB have no host.
func (a accountName) key(role bool) string {
	if role {
		a.host = ""
	}
	return a.user + "@" + strings.ToLower(a.host)
}

// accountChange is a statement that creates, drops or renames accounts.
type accountChange struct {
	verb     string // CREATE, DROP, RENAME; "" for another statement
	roles    bool   // CREATE ROLE, DROP ROLE
	lenient  bool   // IF NOT EXISTS, OR REPLACE
	accounts []accountName
	spans    [][2]int // position of each name in the text
	behind   int      // where the word USER or ROLE ends

	replayed
}

// accountsOf parses a statement of the log.
func accountsOf(sql string, ansi bool) accountChange {
	s := &statement{tokens: tokens(sql, ansi)}
	c := accountChange{verb: s.word()}
	if c.verb == "CREATE" && s.skip("OR") {
		c.lenient = s.skip("REPLACE")
	}
	c.roles = strings.EqualFold(s.peek().text, "ROLE")
	c.behind = s.peek().end
	if c.verb != "CREATE" && c.verb != "DROP" && c.verb != "RENAME" || !s.skip("USER", "ROLE") {
		return accountChange{}
	}
	if strings.EqualFold(s.peek().text, "IF") && s.peek().kind == wordToken {
		s.exists()
		c.lenient = true
	}
	depth := 0
	for name := true; s.next < len(s.tokens); {
		if name {
			if !c.account(s) {
				return accountChange{}
			}
			name = false
			continue
		}
		t := s.peek()
		s.next++
		switch {
		case t.text == "(" && t.kind == otherToken:
			depth++
		case t.text == ")" && t.kind == otherToken:
			depth--
		case depth > 0:
		case t.text == "," && t.kind == otherToken:
			name = true
		case t.kind != wordToken:
		case c.verb == "RENAME" && strings.EqualFold(t.text, "TO"):
			name = true
		case strings.EqualFold(t.text, "DEFAULT") && strings.EqualFold(s.peek().text, "ROLE"):
			return c // the names that follow are those of roles
		}
	}
	if len(c.accounts) == 0 {
		return accountChange{}
	}
	return c
}

// account parses a name.
func (c *accountChange) account(s *statement) bool {
	part := func() (string, bool) {
		t := s.peek()
		s.next++
		if t.kind == otherToken && t.text == "'" {
			return t.literal, true
		}
		return t.text, t.kind != otherToken
	}
	begin := s.peek().at
	user, ok := part()
	a, end := accountName{user, "%"}, 0
	if ok && s.next < len(s.tokens) && s.peek().kind == otherToken && s.peek().text == "@" {
		s.next++
		a.host, ok = part()
	}
	if !ok || s.next > len(s.tokens) {
		return false
	}
	end = s.tokens[s.next-1].end
	c.accounts, c.spans = append(c.accounts, a), append(c.spans, [2]int{begin, end})
	return true
}

// again returns the statement for accounts that may exist, or be dropped, already.
func (c accountChange) again(sql string) string {
	exists := map[string]string{"CREATE": " IF NOT EXISTS", "DROP": " IF EXISTS"}[c.verb]
	if c.lenient || exists == "" {
		return sql
	}
	return sql[:c.behind] + exists + sql[c.behind:]
}

// same compares an account of the server with the one that the statement creates: it creates
// one with another name, as which no client can log in, and drops it.
func (c accountChange) same(ctx context.Context, s *my.Session, i int) (err error) {
	a := c.accounts[i]
	if c.roles {
		return nil // they are only names
	}
	differs := func(why any) error {
		return fmt.Errorf("the log makes account %s, which exists on the server, and %v: drop it there (DROP USER %s), or restore into another server; the log has %s",
			a, why, a, restore.First(c.sql[:c.spans[len(c.spans)-1][1]]+" ...", 200))
	}
	have, err := s.Row(ctx, "SHOW CREATE USER "+a.String())
	if err != nil {
		return differs(err)
	}
	random := make([]byte, 6)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	probe := accountName{"weir_" + hex.EncodeToString(random), "255.255.255.255"} // no client's address
	sql, from := "", 0
	var made []string
	for j, span := range c.spans {
		name := probe
		if j != i {
			name.user += fmt.Sprint("_", j)
		}
		made = append(made, name.String())
		sql += c.sql[from:span[0]] + name.String()
		from = span[1]
	}
	sql += c.sql[from:]
	defer func() {
		for _, again := range []string{my.Unset + ", timestamp = DEFAULT", "DROP USER IF EXISTS " + strings.Join(made, ", ")} {
			err = errors.Join(err, s.Exec(context.WithoutCancel(ctx), again))
		}
	}()
	if err := s.Exec(ctx, c.settings); err != nil {
		return fmt.Errorf("settings of the session: %w", err)
	}
	if err := s.Exec(ctx, sql); err != nil {
		return differs(restore.StatementError(sql, fmt.Errorf("the two cannot be compared: %w", err)))
	}
	want, err := s.Row(ctx, "SHOW CREATE USER "+probe.String())
	if err != nil {
		return differs(err)
	}
	named := func(text string, a accountName) string {
		for _, quote := range []string{"`", "'"} {
			text = strings.Replace(text, quote+a.user+quote+"@"+quote+a.host+quote, "X", 1)
		}
		return text
	}
	if named(have[0], a) != named(want[0], probe) {
		return differs("it has another definition there")
	}
	return nil
}
