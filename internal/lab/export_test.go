package lab

// Region is the server's region.
func (s *S3) Region() string { return s3Region }

// AccessKey is the id of the account that owns the server; Password is its
// secret key.
func (s *S3) AccessKey() string { return s3AccessKey }
