package signals

// sharesGroup: the command has a process group of its own here, so what a terminal sends
// reaches only us.
const sharesGroup = false
