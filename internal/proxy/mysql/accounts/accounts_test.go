package accounts

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

const (
	native = "*2470C0C06DEE42FD1618BB99005ADCA2EC9D1E19" // of "password"
	priv   = `{"plugin":"mysql_native_password","authentication_string":"` + native + `"`
)

// row is one account as a server answers.
func row(values ...string) []sql.NullString {
	var r []sql.NullString
	for _, v := range values {
		r = append(r, sql.NullString{String: v, Valid: true})
	}
	return r
}

func TestStoredSecretDecidesALogin(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		row  []sql.NullString
		want bool
	}{
		"MariaDB":                             {row("bob", "%", priv+"}"), true},
		"MariaDB, another host":               {row("bob", "localhost", priv+"}"), false},
		"MariaDB, several ways":               {row("bob", "%", priv+`,"auth_or":[{}]}`), false},
		"MariaDB, locked":                     {row("bob", "%", priv+`,"account_locked":true}`), false},
		"MariaDB, a role":                     {row("bob", "%", priv+`,"is_role":true}`), false},
		"MariaDB, no password":                {row("bob", "%", `{"plugin":"mysql_native_password","authentication_string":""}`), false},
		"MySQL 5.7":                           {row("bob", "%", mywire.PluginNative, native, ""), true},
		"MySQL 8":                             {row("bob", "%", mywire.PluginNative, native, "", ""), true},
		"MySQL 8, another plugin":             {row("bob", "%", mywire.PluginSHA2, "$A$005$"+strings.Repeat("x", 63), "", ""), false},
		"MySQL 8, a second password":          {row("bob", "%", mywire.PluginNative, native, "", `{"additional_password":"x"}`), false},
		"MySQL 8, counts failed logins":       {row("bob", "%", mywire.PluginNative, native, "", `{"Password_locking":{"failed_login_attempts":3}}`), false},
		"MySQL 8, attributes without meaning": {row("bob", "%", mywire.PluginNative, native, "", `{"metadata":{"a":1}}`), true},
	} {
		var a Choices
		a.put("bob", account{user: "bob", host: "%", plugin: mywire.PluginNative, hash: 7, at: time.Second})
		if _, ok := a.Stored("bob", [][]sql.NullString{tt.row}, 7, time.Second); ok != tt.want {
			t.Errorf("%s: decides %v", name, ok)
		}
	}
}

func TestChoicesHoldWhileTheAccountsAreTheSame(t *testing.T) {
	t.Parallel()
	var a Choices
	rows := [][]sql.NullString{row("bob", "%", priv+"}")}
	if _, ok := a.Stored("bob", rows, 7, time.Second); ok || a.Changed("bob", rows, 7) {
		t.Error("a name is known before its first login")
	}
	a.put("bob", account{user: "bob", host: "%", plugin: mywire.PluginNative, hash: 7, at: time.Second})
	stored := func(hash uint64, now time.Duration) bool {
		_, ok := a.Stored("bob", rows, hash, now)
		return ok
	}
	if !stored(7, time.Second) || stored(8, time.Second) || stored(7, time.Second+accountKeep) {
		t.Error("a choice holds for other accounts, or for ever, or not at all")
	}
	a.Store("bob", rows, 2*time.Second)
	if a.Recent("bob", time.Second, 2*time.Second) == nil || a.Recent("bob", time.Second, 4*time.Second) != nil {
		t.Error("accounts that were just queried are not recent, or old ones are")
	}
	a.AskAgain(2 * time.Second)
	if a.Recent("bob", time.Second, 2*time.Second) != nil {
		t.Error("accounts are recent that are to be queried again")
	}
	if a.Changed("bob", rows, 7) || !a.Changed("bob", rows, 8) || a.Changed("bob", rows, 8) {
		t.Error("a change is not reported once")
	}
	a.put("bob", account{hash: 7, at: time.Second})
	if a.Forget(); stored(7, time.Second) {
		t.Error("a choice outlives another server")
	}
}

func TestQuery(t *testing.T) {
	t.Parallel()
	if q := Query(true, 101100); !strings.Contains(q, "global_priv") {
		t.Error(q)
	}
	for version, want := range map[uint32]bool{80013: false, 80014: true} {
		if q := Query(false, version); strings.Contains(q, "User_attributes") != want || strings.Contains(q, "%") {
			t.Error(version, q)
		}
	}
}
