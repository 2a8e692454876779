package schedule

import "testing"

func TestSchedulesHoldNoPasswords(t *testing.T) {
	for _, arg := range []string{
		"postgres://a:b@db/shop", "postgres://a:b@db1:5432,db2:5432/shop", "mysql://a:b@db/shop",
		"host=db password=b dbname=shop", "password = b", "postgres://a@db/shop?password=b",
		"postgres://a@db/shop?sslmode=require&sslpassword=b", "s3://key:secret@bucket/x", "--to=s3://key:secret@bucket/x",
	} {
		if !HoldsPassword(arg) {
			t.Errorf("%q passes", arg)
		}
	}
	for _, arg := range []string{
		"postgres://a@db/shop", "postgres://a@db:5432/shop?user=a@b", "host=db passfile=/x", "--encrypt-passphrase-file=/x",
		"--to=s3://bucket/x", "--no-role-passwords=true", "--table=password",
	} {
		if HoldsPassword(arg) {
			t.Errorf("%q is refused", arg)
		}
	}
}
