package restore

import (
	"strings"
	"testing"
)

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
	} {
		if got := First(sql, 1000); got != sql && !strings.Contains(sql, ":443") {
			t.Errorf("%s is shown as %s", sql, got)
		}
	}
}
