//go:build !darwin

package signals

// sharesGroup: the command is in our process group, so a terminal signals both.
const sharesGroup = true
