package bouncer

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
)

// LDAP by auth_type and by lines of auth_hba_file, with a server that takes the same
// passwords and with one that takes those of the database's own user.
func TestLDAP(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Auth: lab.SCRAM, Password: "super"})
	host, port, err := net.SplitHostPort(pg.Addr())
	if err != nil {
		t.Fatal(err)
	}
	people := labtest.LDAP(t, lab.LDAPUser{UID: "bob", Password: "super"}, lab.LDAPUser{UID: "app", Password: "in the directory"}, lab.LDAPUser{UID: pg.User(), Password: "super"})
	at := fmt.Sprintf(`ldapserver=%s ldapport=%d `, people.Host(), people.Port())
	simple := at + `ldapprefix="uid=" ldapsuffix=",ou=people,` + lab.LDAPBase + `"`
	search := at + `ldapbasedn="` + lab.LDAPBase + `" ldapbinddn="` + lab.LDAPManager + `" ldapbindpasswd=weir`
	r := start(t, fmt.Sprintf(`
[databases]
forced = host=%[1]s port=%[2]s dbname=postgres user=%[3]s password=super
own = host=%[1]s port=%[2]s dbname=postgres
[pgbouncer]
auth_type = ldap
auth_ldap_options = %[4]s
admin_users = bob
ignore_startup_parameters = extra_float_digits
`, host, port, pg.User(), simple))
	check := func(what string) {
		t.Helper()
		if who := r.value(r.mustDial("user=bob password=super dbname=forced"), "SELECT current_user"); who != pg.User() {
			t.Errorf("%s: the server has %s", what, who)
		}
		r.mustDial("user=app password='in the directory' dbname=forced")
		if who := r.value(r.mustDial(fmt.Sprintf("user=%s password=super dbname=own", pg.User())), "SELECT current_user"); who != pg.User() {
			t.Errorf("%s: the server has %s", what, who)
		}
		r.refused("user=app password=secret dbname=forced", "LDAP authentication failed") // that of auth_file
		r.refused("user=bob password=wrong dbname=forced", "LDAP authentication failed")
		r.refused("user=nobody password=super dbname=forced", "LDAP authentication failed")
		r.refused("user=bob dbname=forced", "empty password returned by client")
	}
	check("auth_type")
	r.mustDial("user=bob password=super dbname=pgbouncer")
	r.refused("user=app password='in the directory' dbname=pgbouncer", "not allowed")

	r.write("hba", "host all "+pg.User()+" all ldap "+search+" # the superuser\nhost all all all ldap "+simple+"\n")
	console := r.mustDial("user=bob password=super dbname=pgbouncer")
	for _, set := range []string{"auth_hba_file = '" + r.dir + "/hba'", "auth_type = 'hba'"} {
		if _, err := console.Exec(t.Context(), "SET "+set); err != nil {
			t.Fatal(err)
		}
	}
	check("auth_hba_file")

	if _, err := console.Exec(t.Context(), "SET auth_ldap_options = '"+search+"'"); err != nil {
		t.Fatal(err)
	}
	for _, x := range r.table(console, "CONFIG") {
		if x["key"] == "auth_ldap_options" && strings.Contains(fmt.Sprint(x["value"]), "ldapbindpasswd=weir") {
			t.Errorf("SHOW CONFIG has the password: %v", x["value"])
		}
	}
	people.Kill()
	r.refused("user=bob password=super dbname=forced", "LDAP authentication failed")
	r.logged("connection refused")
}
