package restore

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup/bulk"
)

func TestIdentityIsThatOfThePart(t *testing.T) {
	t.Parallel()
	o := func(tables ...string) string {
		return (&Options{Filter: bulk.Filter{Tables: tables}}).Identity("b", "d")
	}
	if o("a", "b") != o("b", "a") || o("a", "b") == o("a") {
		t.Errorf("%s, %s, %s", o("a", "b"), o("b", "a"), o("a"))
	}
}

// Versions of weir that did not record the part wrote the journal of the whole for each.
func TestJournalOfAnOlderPartIsRefused(t *testing.T) {
	t.Parallel()
	j, part := &Journal{}, &Options{Resume: true, Filter: bulk.Filter{Tables: []string{"a"}}}
	j.Add("backup b database d")
	err := j.Check("schema weir_restore", "b", "d", part)
	if err == nil || !strings.Contains(err.Error(), "older version of weir") || !strings.Contains(err.Error(), "drop what that restore has created, with schema weir_restore") {
		t.Error(err)
	}
	if err := j.Check("schema weir_restore", "b", "d", &Options{Resume: true}); err != nil {
		t.Error(err)
	}
}

func TestStatementsAreShownWithoutSecrets(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		`ALTER ROLE app WITH LOGIN PASSWORD 'S3CRET'`,
		`ALTER ROLE app WITH LOGIN PASSWORD E'it''s \'S3CRET'`,
		`CREATE USER MAPPING FOR app SERVER far OPTIONS (password 'S3CRET', "user" 'app')`,
		`CREATE USER MAPPING FOR app SERVER far OPTIONS ("Api_Key" 'x'' S3CRET')`,
		"CREATE SUBSCRIPTION s CONNECTION 'host=far user=u sslkey=S3CRET password=S3CRET'\n PUBLICATION p",
		`CREATE SERVER far FOREIGN DATA WRAPPER w OPTIONS (connstr 'host=far password=S3CRET dbname=x')`,
		`CREATE SERVER far FOREIGN DATA WRAPPER w OPTIONS (url 'https://app:S3CRET@far/x')`,
		"CREATE USER `app`@`%` IDENTIFIED BY PASSWORD '*S3CRET'",
		"CREATE USER `app`@`%` IDENTIFIED WITH 'caching_sha2_password' AS '$A$005$S3CRET'",
		"CREATE USER `app`@`%` IDENTIFIED VIA ed25519 USING 'S3CRET'",
		"create user a identified by 'S3CRET', b@c identified by 'S3CRET'",
		"create user a identified/**/by\n'x''S3CRET'",
		"create user a Identified -- it's\n by # it's\n 'S3CRET'",
		"create user a /*!50100 identified by 'S3CRET' */",
		`create user a identified by "S3CRET"`,
		"create user a identified via mysql_native_password using password('S3CRET') or ed25519 as 'S3CRET'",
		"CREATE USER a IDENTIFIED WITH 'caching_sha2_password' AS 0xS3CRET",
		"alter user a identified by 'x' replace 'S3CRET'",
		"grant select on a.b to c identified by password '*S3CRET'",
		"set password for 'a'@'b' = 'S3CRET'",
		"SET PASSWORD FOR a = /* new */ Password('S3CRET')",
		"set password = password (\"S3CRET\")",
		"CHANGE MASTER 'a' TO MASTER_HOST='b', master_password = 'S3CRET', MASTER_PORT=1",
		"create server s foreign data wrapper mysql options (user 'a', PassWord/**/'S3CRET', port 1)",
		"CREATE TABLE t (a int) ENGINE=FEDERATED CONNECTION='mysql://u:x/S3CRET@h/d/t'",
		"CREATE TABLE t (a int) ENGINE=CONNECT CONNECTION='Driver=x;UID=u;PWD=S3CRET;x=y'",
		`CREATE ROLE app LOGIN ENCRYPTED password $x$S3CRET$x$`,
		`CREATE ROLE app LOGIN PASSWORD U&'\0053S3CRET' VALID UNTIL 'infinity'`,
		`ALTER ROLE app PASSWORD/* it's */'S3CRET'`,
		`CREATE USER MAPPING FOR app SERVER far OPTIONS (x 'ends with \', password 'S3CRET')`,
		`ALTER SUBSCRIPTION "a" connection 'host=x password=''S3CRET'''`,
		"CREATE SUBSCRIPTION s CONNECTION $$host=x password=S3CRET$$ PUBLICATION p",
		`ALTER SERVER far OPTIONS (SET connstr 'password=''S3CRET''')`,
	} {
		for n := range len(sql) {
			if got := First(sql, n); strings.Contains(got, "S3CRET") {
				t.Errorf("cut at %d: %s", n, got)
				break
			}
		}
		e := &ObjectError{Object: "x", Err: ErrDiffers, Statement: sql}
		if strings.Contains(e.Error(), "S3CRET") {
			t.Errorf("error: %v", e)
		}
	}
	for _, sql := range []string{
		`CREATE TABLE secrets (token text DEFAULT 'x', password text)`,
		`COMMENT ON COLUMN users.password IS 'of the user'`,
		`COPY t FROM 'https://far:443/x'`,
		"CREATE USER 'a'@'b', 'c' REQUIRE SUBJECT 'd' COMMENT 'e'",
		"CREATE USER a IDENTIFIED VIA 'unix_socket'",
		"CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'h', PORT 3306)",
		"SET NAMES 'utf8'",
	} {
		if got := First(sql, 1000); got != sql && !strings.Contains(sql, ":443") {
			t.Errorf("%s is shown as %s", sql, got)
		}
	}
}

// TestMessagesQuoteNoSecrets: servers quote a statement that they do not understand.
func TestMessagesQuoteNoSecrets(t *testing.T) {
	t.Parallel()
	const message = "ERROR 1064 (42000): You have an error in your SQL syntax; check the manual for the right syntax to use near 'S3CRET' NONSENSE' at line 1"
	for sql, want := range map[string]string{
		"create user a identified by 'S3CRET' nonsense": "create user a identified by '…' nonsense: ERROR 1064 (42000): You have an error in your SQL syntax; check the manual for the right syntax to use near '…'",
		"create table S3CRET nonsense":                  "create table S3CRET nonsense: " + message,
	} {
		if got := StatementError(sql, errors.New(message)).Error(); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
		e := &ObjectError{Object: "x", Statement: First(sql, 100), Err: errors.New(message)}
		if strings.Contains(e.Error(), "S3CRET") != strings.Contains(want, "S3CRET") {
			t.Errorf("an object's error: %v", e)
		}
	}
	if got, want := Unsecret("ALTER ROLE a LOGIN PASSWORD 'x' VALID UNTIL 'y'"), "ALTER ROLE a LOGIN PASSWORD … VALID UNTIL 'y'"; got != want {
		t.Errorf("in a script: %s", got)
	}
}

func TestObjects(t *testing.T) {
	for n, want := range map[int]string{1: "1 object", 2: "2 objects"} {
		if got := Objects(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
		if err := (Options{}).Empty(strconv.Itoa(n), "x"); !strings.Contains(err.Error(), want+",") {
			t.Error(err)
		}
	}
}
