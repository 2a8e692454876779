// Package accounts remembers what a MySQL or MariaDB server stores about the accounts of those who
// log in. Which of several accounts of one name applies depends on the host as which the server
// sees weir, and only the server knows the rules. So weir relays the first login, and queries on
// its connection which account it is. From then on weir checks that user itself, by the secret
// that is stored for that account, until any account of that name changes, or one without a name,
// which may take precedence.
//
// The package opens no connection and keeps no time.
package accounts

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// ofMariaDB and ofMySQL query the accounts that a name may mean; %s is for columns that newer
// versions add.
const (
	ofMariaDB = "SELECT User, Host, Priv FROM mysql.global_priv WHERE User IN (?, '') ORDER BY User, Host"
	ofMySQL   = "SELECT User, Host, plugin, authentication_string, CONCAT_WS('/', account_locked, password_expired, password_last_changed, password_lifetime, ssl_type, ssl_cipher, x509_issuer, x509_subject)%s" +
		" FROM mysql.user WHERE User IN (?, '') ORDER BY User, Host"
)

// Query returns the query for the accounts that a name may mean; ? stands for the name. version is
// that of MySQL, as in MYSQL_VERSION_ID.
func Query(mariadb bool, version uint32) string {
	if mariadb {
		return ofMariaDB
	}
	attributes := ""
	if version >= 80014 {
		attributes = ", User_attributes"
	}
	return fmt.Sprintf(ofMySQL, attributes)
}

const (
	// accountKeep is how long weir relies on the server's choice of an account.
	accountKeep = time.Minute
	// maxAccounts bounds the accounts that are remembered.
	maxAccounts = 4096
)

// Choices are the accounts that the server has chosen for names. The zero value has none. Safe for
// concurrent use.
type Choices struct {
	mu     sync.Mutex
	seen   map[string]account // guarded by mu: by the name at login
	forgot time.Duration      // results of queries before this serve no login
}

type account struct {
	user, host string
	plugin     string // by which the client has authenticated
	hash       uint64 // of all accounts that the name may mean
	at         time.Duration

	// secret is what is stored for the account, if usable, as of read. It learns: the fast path
	// of caching_sha2_password needs the result of a full login.
	secret       mywire.Secret
	read, usable bool

	rows  [][]sql.NullString // the accounts that the name may mean, as of asked
	asked time.Duration
}

func (a *Choices) get(name string, hash uint64, now time.Duration) (account, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	have, ok := a.seen[name]
	return have, ok && have.hash == hash && now-have.at < accountKeep
}

// Changed reports whether the accounts that a name may mean have changed since its last login.
// It does so once.
func (a *Choices) Changed(name string, rows [][]sql.NullString, hash uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	have, ok := a.seen[name]
	if !ok || rows == nil || have.hash == hash {
		return false
	}
	delete(a.seen, name)
	return true
}

func (a *Choices) put(name string, is account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.seen[name]; a.seen == nil || !ok && len(a.seen) >= maxAccounts {
		a.seen = make(map[string]account)
	}
	a.seen[strings.Clone(name)] = is
}

// Recent returns the accounts that a name may mean, if a login that weir itself has decided
// queried them less than keep ago. A client that proves the password against these needs no new
// query.
func (a *Choices) Recent(name string, keep, now time.Duration) [][]sql.NullString {
	a.mu.Lock()
	defer a.mu.Unlock()
	if have := a.seen[name]; have.asked > a.forgot && now-have.asked < keep {
		return have.rows
	}
	return nil
}

// Store keeps the accounts that a name may mean.
func (a *Choices) Store(name string, rows [][]sql.NullString, asked time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if have, ok := a.seen[name]; ok && asked > have.asked {
		have.rows, have.asked = rows, asked
		a.seen[name] = have
	}
}

// AskAgain makes the next login of each name query its accounts.
func (a *Choices) AskAgain(now time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgot = now
}

// Forget removes everything: another server chooses by itself.
func (a *Choices) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = nil
}

// Stored returns the secret that the server stores for a login; ok is false if the server must
// check the login itself. rows are the accounts that the name may mean, and hash is theirs.
func (a *Choices) Stored(name string, rows [][]sql.NullString, hash uint64, now time.Duration) (secret mywire.Secret, ok bool) {
	is, ok := a.get(name, hash, now)
	if !ok || is.read {
		return is.secret, ok && is.usable
	}
	for _, row := range rows {
		switch {
		case row[0].String != is.user || row[1].String != is.host:
		case len(row) > 3:
			is.secret, is.usable = secretOf(row[2].String, row[3].String)
			is.usable = is.usable && (len(row) < 6 || passwordAlone(row[5].String))
		default:
			is.secret, is.usable = secretOfPriv(row[2].String)
		}
	}
	is.usable = is.usable && is.secret.Plugin() == is.plugin
	is.read = true
	a.put(name, is)
	return is.secret, is.usable
}

// secretOf returns the secret of a plugin that weir itself supports. The server, not weir, lets
// in accounts without a password.
func secretOf(plugin, text string) (secret mywire.Secret, ok bool) {
	var err error
	switch {
	case text == "":
		return mywire.Secret{}, false
	case plugin == "ed25519": // the server's name of the plugin
		secret, err = mywire.ParseEd25519Secret(text)
	case plugin == mywire.PluginNative && text[0] == '*', plugin == mywire.PluginSHA2 && text[0] == '$':
		secret, err = mywire.ParseSecret(text)
	default:
		return mywire.Secret{}, false
	}
	if _, plain := secret.Plain(); err != nil || plain {
		return mywire.Secret{}, false
	}
	return secret, true
}

// passwordAlone reports whether the attributes of a MySQL account make its one password decide
// a login. Otherwise a second password is valid, too, or further factors are required, or the
// server counts failed logins, and only it knows how many.
func passwordAlone(attributes string) bool {
	if attributes == "" {
		return true
	}
	var is struct {
		Second  string            `json:"additional_password"` // RETAIN CURRENT PASSWORD
		Factors []json.RawMessage `json:"multi_factor_authentication"`
		Locking struct {
			After int `json:"failed_login_attempts"`
		} `json:"Password_locking"`
	}
	return json.Unmarshal([]byte(attributes), &is) == nil && is.Second == "" && len(is.Factors) == 0 && is.Locking.After == 0
}

// secretOfPriv returns the secret of a MariaDB account.
func secretOfPriv(text string) (secret mywire.Secret, ok bool) {
	var priv struct {
		Plugin string            `json:"plugin"`
		Text   string            `json:"authentication_string"`
		Or     []json.RawMessage `json:"auth_or"` // several ways to log in: the server chooses
		Locked bool              `json:"account_locked"`
		Role   bool              `json:"is_role"`
	}
	if json.Unmarshal([]byte(text), &priv) != nil || len(priv.Or) > 0 || priv.Locked || priv.Role {
		return mywire.Secret{}, false
	}
	return secretOf(priv.Plugin, priv.Text)
}

// Learn queries on the connection of a relayed login which account it is. rows are the accounts
// that the name could mean before, and hash is theirs.
func (a *Choices) Learn(ctx context.Context, name string, rows [][]sql.NullString, conn *mywire.Server, hash uint64, now time.Duration) {
	if len(rows) == 0 {
		return
	}
	answer, err := conn.Query(ctx, "SELECT CURRENT_USER(), @@SESSION.proxy_user")
	if err != nil || len(answer) != 1 || len(answer[0]) != 2 || answer[0][1].Valid {
		return // unknown, or another account stands in as a proxy user: the next login is relayed again
	}
	full := answer[0][0].String
	if at := strings.LastIndexByte(full, '@'); at >= 0 {
		a.put(name, account{user: full[:at], host: full[at+1:], plugin: conn.Plugin, hash: hash, at: now})
	}
}
